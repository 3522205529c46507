"""Single-headed attention against a loop that computes one number at a time."""

import math

import pytest
import torch
from torch import Tensor

from sparing.ops.single_head_attention import attention_weights, single_head_attention


def by_hand(query_BTD: Tensor, keys_BSD: Tensor, values_BSD: Tensor) -> Tensor:
    batch, segment, dim = query_BTD.shape
    memory = keys_BSD.size(1) - segment
    out_BTD = torch.zeros_like(query_BTD)
    for b in range(batch):
        for t in range(segment):
            seen = range(memory + t + 1)
            scores = [float(query_BTD[b, t] @ keys_BSD[b, s]) / math.sqrt(dim) for s in seen]
            total = sum(math.exp(score) for score in scores)
            for s in seen:
                out_BTD[b, t] += math.exp(scores[s]) / total * values_BSD[b, s]
    return out_BTD


@pytest.mark.parametrize(("segment", "memory"), [(1, 0), (1, 5), (4, 0), (5, 3)])
def test_it_is_the_definition(segment: int, memory: int) -> None:
    torch.manual_seed(0)
    query, keys, values = (
        torch.randn(2, size, 6, dtype=torch.float64)
        for size in (segment, memory + segment, memory + segment)
    )
    expected = by_hand(query, keys, values)
    torch.testing.assert_close(single_head_attention(query, keys, values), expected)
    weights_BTS = attention_weights(query, keys)
    torch.testing.assert_close(torch.bmm(weights_BTS, values), expected)


@pytest.mark.parametrize("segment", [1, 3])
def test_slots_from_before_a_lane_began_do_not_exist(segment: int) -> None:
    torch.manual_seed(0)
    query, keys, values = (
        torch.randn(4, size, 6, dtype=torch.float64) for size in (segment, 5 + segment, 5 + segment)
    )
    for lane, seen in enumerate((0, 2, 5, 99)):
        begin = max(0, 5 - seen)
        keys[lane, :begin] = 1e4
        expected = by_hand(
            *(each[lane, None] for each in (query, keys[:, begin:], values[:, begin:]))
        )
        found = single_head_attention(query, keys, values, seen_B=torch.tensor([0, 2, 5, 99]))
        torch.testing.assert_close(found[lane, None], expected)


def test_gradients_are_those_of_finite_differences() -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(1, n, 3, dtype=torch.float64, requires_grad=True) for n in (3, 5, 5)]
    assert torch.autograd.gradcheck(single_head_attention, inputs)


def test_dropout_leaves_out_whole_positions_and_keeps_the_mean() -> None:
    torch.manual_seed(0)
    query, keys = torch.zeros(1, 1, 4), torch.zeros(1, 2000, 4)
    values = torch.ones(1, 2000, 4)
    dropped = single_head_attention(query, keys, values, dropout=0.5)
    assert dropped.mean().item() == pytest.approx(1.0, abs=0.1)
    assert not torch.equal(dropped, torch.ones(1, 1, 4))
