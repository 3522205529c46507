"""Memories grow at their end and lose their oldest entries."""

import pytest
import torch

from sparing.nn.memory import extended, recent


def test_fresh_entries_stand_at_the_end_and_say_the_precision() -> None:
    both = extended(torch.zeros(2, 3, 4), torch.ones(2, 1, 4).bfloat16())
    assert both.dtype == torch.bfloat16
    assert both[0, :, 0].tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("room", "left"), [(5, [1, 2, 3]), (3, [1, 2, 3]), (2, [2, 3]), (0, []), (-4, [])]
)
def test_the_newest_stay(room: int, left: list[int]) -> None:
    assert recent(torch.tensor([[1, 2, 3]]), room).tolist() == [left]
