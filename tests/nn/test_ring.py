"""Ring buffers: where positions are written, and how far behind a query each slot is."""

import pytest
import torch
from torch import Tensor

from sparing.nn.ring import (
    before_first,
    empty_head_rings,
    head_rings,
    outside_memory,
    ring_distances,
    ring_length,
    write_ring,
)

SLOTS, SEGMENT = 7, 3


def written(count: int) -> Tensor:
    """A ring (1, R, 1) after `count` positions, whose entries are the positions; -1: empty."""
    ring_1R1 = torch.full((1, SLOTS, 1), -1.0)
    for position in range(count):
        write_ring(ring_1R1, torch.full((1, 1, 1), float(position)), torch.tensor([position]))
    return ring_1R1


@pytest.mark.parametrize("seen", [0, 2, 4, 5, 20])
def test_a_slot_is_as_far_back_as_its_position(seen: int) -> None:
    position_R = written(seen + SEGMENT)[0, :, 0]
    distance_TR = ring_distances(torch.tensor([seen]), SEGMENT, SLOTS)[0]
    empty_TR = before_first(distance_TR[None], torch.tensor([seen]))[0]
    for query in range(SEGMENT):
        for slot in range(SLOTS):
            if position_R[slot] < 0:
                assert empty_TR[query, slot]
            else:
                assert not empty_TR[query, slot]
                assert distance_TR[query, slot] == seen + query - position_R[slot]


@pytest.mark.parametrize("seen", [0, 3, 11])
def test_memory_and_earlier_positions_of_the_segment_are_seen(seen: int) -> None:
    memory, position_R = 2, written(seen + SEGMENT)[0, :, 0]
    distance_BTR = ring_distances(torch.tensor([seen]), SEGMENT, SLOTS)
    unseen_TR = outside_memory(distance_BTR, torch.tensor([seen]), memory)[0]
    for query in range(SEGMENT):
        visible = set(position_R[~unseen_TR[query]].tolist())
        assert visible == set(range(max(0, seen - memory), seen + query + 1))


def test_a_segment_is_written_as_its_tokens_one_by_one() -> None:
    ring_1R1, whole_1T1 = written(5), torch.tensor([[[5.0], [6.0], [7.0]]])
    write_ring(ring_1R1, whole_1T1, torch.tensor([5]))
    assert torch.equal(ring_1R1, written(8))


def test_consecutive_heads_of_equal_length_share_a_ring() -> None:
    lengths = [ring_length(window, 1) for window in (15, 15, 31, 15)]
    assert lengths == [16, 16, 32, 16]
    rings = list(head_rings(empty_head_rings(lengths, 4, 2, torch.zeros(1))))
    assert [each.heads for each in rings] == [slice(0, 2), slice(2, 3), slice(3, 4)]
    assert [tuple(each.keys_BHRK.shape) for each in rings] == [
        (2, 2, 16, 4),
        (2, 1, 32, 4),
        (2, 1, 16, 4),
    ]
