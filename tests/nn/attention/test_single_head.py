"""Single-headed attention as a block."""

import torch
from tests.nn import block_laws as laws

from sparing.nn.attention.single_head import SingleHeadBlock


def block(memory: int = 16) -> SingleHeadBlock:
    return SingleHeadBlock(laws.DIM, memory=memory, dropout=0.0)


def test_it_obeys_the_laws() -> None:
    laws.everything(block())


def test_lanes_are_reset_also_once_the_memory_is_full() -> None:
    laws.reset_lanes_are_fresh(laws.lively(block(memory=3)))


def test_a_skipped_block_still_stores_the_stream() -> None:
    lively, hidden_BTD = laws.lively(block(memory=5)), laws.stream()
    first = lively.initial_state(2, hidden_BTD)
    torch.testing.assert_close(lively.skip_step(hidden_BTD, first), lively(hidden_BTD, first)[1])


def test_memory_is_bounded() -> None:
    _, state = laws.read(laws.lively(block(memory=4)), laws.stream(), 5)
    assert state["memory"].shape == (2, 4, laws.DIM)
