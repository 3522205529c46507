"""Memories grow at their end and lose their oldest entries."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparing.nn.kv_buffer import WIDE, KVBuffer, _divides_into, append, newest


def test_fresh_entries_stand_at_the_end_and_say_the_precision() -> None:
    both = append(torch.zeros(2, 3, 4), torch.ones(2, 1, 4).bfloat16())
    assert both.dtype == torch.bfloat16
    assert both[0, :, 0].tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("size", "left"), [(5, [1, 2, 3]), (3, [1, 2, 3]), (2, [2, 3]), (0, []), (-4, [])]
)
def test_the_newest_stay(size: int, left: list[int]) -> None:
    assert newest(torch.tensor([[1, 2, 3]]), size).tolist() == [left]


def numbered(
    start: int, length: int, width: int = 3, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Two lanes of numbered entries, one vector each."""
    number = torch.arange(start, start + length, dtype=dtype)
    return torch.stack([number, number + 1000])[..., None].expand(2, length, width).clone()


@given(
    # Windows change as spans do, and may grow by more than is read.
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 12)), max_size=30),
    st.integers(1, 12),
    # Some can be copied in pieces of eight bytes, others only number by number.
    st.sampled_from([(3, torch.float32), (4, torch.float32), (4, torch.float16), (3, torch.int64)]),
)
def test_it_holds_what_copying_would(
    steps: list[tuple[int, int]], first: int, kind: tuple[int, torch.dtype]
) -> None:
    buffer, plain = KVBuffer(), numbered(0, first, *kind)
    memory, end, handed = plain, first, []
    for length, window in steps:
        fresh = numbered(end, length, *kind)
        memory, end = buffer.append(memory, fresh, window), end + length
        plain = torch.cat([plain, fresh], dim=1)[:, -window:]
        handed.append((memory, plain))
    for found, right in handed:
        assert torch.equal(found, right)


def test_only_what_lies_in_whole_pieces_is_copied_in_them() -> None:
    half = torch.zeros(2, 9, 8, dtype=torch.float16)
    assert _divides_into(half[:, 3:], WIDE)
    assert _divides_into(half.double()[..., :3], WIDE)
    odd = [half.flatten()[1:9], half[..., :6], half[..., ::2], half.mT, half.to(torch.complex128)]
    assert not any(_divides_into(each, WIDE) for each in odd)
    shifted = torch.zeros(2, 18, dtype=torch.float16)[:, :16]
    assert not _divides_into(shifted, WIDE)


def test_little_is_copied() -> None:
    buffer, memory, places = KVBuffer(), numbered(0, 100), set()
    for step in range(300):
        memory = buffer.append(memory, numbered(100 + step, 1), 100)
        places.add(memory.untyped_storage().data_ptr())
    assert len(places) <= 4


def test_a_window_that_widens_brings_nothing_back() -> None:
    buffer = KVBuffer()
    wide = buffer.append(numbered(0, 6), numbered(6, 1), 6)
    narrow = buffer.append(wide, numbered(7, 1), 2)
    again = buffer.append(narrow, numbered(8, 1), 6)
    # The older ones still lie before it in the same storage.
    assert again.untyped_storage().data_ptr() == wide.untyped_storage().data_ptr()
    assert again[0, :, 0].tolist() == [6, 7, 8]


def test_an_old_state_can_be_continued_again() -> None:
    buffer = KVBuffer()
    common = buffer.append(numbered(0, 4), numbered(4, 2), 5)
    one = buffer.append(common, numbered(6, 2), 5)
    other = buffer.append(common, numbered(60, 2), 5)
    further = buffer.append(one, numbered(8, 1), 5)
    assert one[0, :, 0].tolist() == [3, 4, 5, 6, 7]
    assert other[0, :, 0].tolist() == [3, 4, 5, 60, 61]
    assert further[0, :, 0].tolist() == [4, 5, 6, 7, 8]


def test_what_is_written_behind_does_not_disturb_a_graph_that_read_before() -> None:
    buffer, weight = KVBuffer(), torch.ones(3, requires_grad=True)
    memory = buffer.append(numbered(0, 4), numbered(4, 2), 5)
    loss = (memory * weight).square().sum()
    buffer.append(memory, numbered(6, 2), 5)
    loss.backward()
    assert torch.equal(weight.grad, 2 * memory.square().sum((0, 1)))


def test_a_copied_model_writes_to_a_buffer_of_its_own() -> None:
    buffer = KVBuffer()
    memory = buffer.append(numbered(0, 4), numbered(4, 2), 5)
    twin = copy.deepcopy(buffer)
    mine, its = (each.append(memory, numbered(at, 1), 5) for each, at in ((buffer, 6), (twin, 70)))
    assert mine[0, -1, 0] == 6
    assert its[0, -1, 0] == 70
