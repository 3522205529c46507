"""Transformer-XL attention as a block."""

import pytest
import torch
from tests.nn import block_laws as laws

from sparing.nn.attention.relative import RelativeBlock


def block(memory: int = 16) -> RelativeBlock:
    return RelativeBlock(laws.DIM, 2, 4, memory=memory, dropout=0.0)


def test_it_obeys_the_laws() -> None:
    laws.everything(block())


def test_it_starts_as_the_identity() -> None:
    delta_BTD, _ = block().double()(laws.stream(), block().initial_state(2, laws.stream()))
    assert not delta_BTD.any()


def test_keys_and_values_kept_for_inference_change_no_answer() -> None:
    lively = laws.lively(block(memory=6))
    whole, state = laws.read(lively, laws.stream(), 3)
    assert set(state) == {"memory"}
    with torch.no_grad():
        cached, state = laws.read(lively, laws.stream(), 3, inference=True)
        assert set(state) == {"keys", "values"}
        assert sum(x.numel() for x in state.values()) == 2 * lively.state_numbers(inference=True)
    torch.testing.assert_close(cached, whole)


def test_memory_is_bounded_and_reaches_back() -> None:
    lively, hidden_BTD = laws.lively(block(memory=4)), laws.stream()
    _, state = laws.read(lively, hidden_BTD, 5)
    torch.testing.assert_close(state["memory"], hidden_BTD[:, -4:])
    changed_BTD = hidden_BTD.clone()
    changed_BTD[:, 4, 0] += 1
    before, after = (laws.read(lively, each, 5)[0] for each in (hidden_BTD, changed_BTD))
    assert (before[:, 5:10] - after[:, 5:10]).abs().amax() > 1e-4
    torch.testing.assert_close(before[:, 10:], after[:, 10:], rtol=0, atol=0)


def test_lanes_are_reset_also_once_the_memory_is_full() -> None:
    laws.reset_lanes_are_fresh(laws.lively(block(memory=3)))


def test_a_skipped_block_still_stores_the_stream() -> None:
    lively, hidden_BTD = laws.lively(block(memory=5)), laws.stream()
    first = lively.initial_state(2, hidden_BTD)
    torch.testing.assert_close(lively.skip_step(hidden_BTD, first), lively(hidden_BTD, first)[1])


def test_heads_may_be_wider_or_narrower_than_the_stream() -> None:
    laws.everything(RelativeBlock(laws.DIM, 3, 2, memory=16, dropout=0.0))
    with pytest.raises(ValueError, match="even"):
        RelativeBlock(7, 3, 2, memory=4, dropout=0.0)
