"""Feed-forward as a block."""

import pytest
import torch
from tests.nn import block_laws as laws

from sparing.nn.feedforward import Activation, BoomBlock, FeedForwardBlock


@pytest.mark.parametrize("activation", ["relu2", "relu", "gelu", "swiglu"])
def test_it_obeys_the_laws(activation: Activation) -> None:
    laws.everything(FeedForwardBlock(laws.DIM, 16, activation=activation))


def test_it_is_what_its_formula_says() -> None:
    block = laws.lively(FeedForwardBlock(laws.DIM, 16))
    hidden = laws.stream()
    normed = (
        hidden / (hidden.square().mean(-1, keepdim=True) + torch.finfo(hidden.dtype).eps).sqrt()
    )
    wide = (normed @ block.widen.weight.T).clamp(min=0) ** 2
    torch.testing.assert_close(block(hidden, {})[0], wide @ block.narrow.weight.T)


def test_swiglu_opens_one_half_by_the_other() -> None:
    block = laws.lively(FeedForwardBlock(laws.DIM, 16, activation="swiglu"))
    normed = torch.nn.functional.rms_norm(laws.stream(), (laws.DIM,))
    gate, opened = (normed @ block.widen.weight.T).split(16, dim=-1)
    wide = gate / (1 + torch.exp(-gate)) * opened
    torch.testing.assert_close(block(laws.stream(), {})[0], wide @ block.narrow.weight.T)


def test_boom_obeys_the_laws() -> None:
    laws.everything(BoomBlock(laws.DIM, 4 * laws.DIM, dropout=0.0))


def test_it_works_position_by_position() -> None:
    block = laws.lively(BoomBlock(laws.DIM, 2 * laws.DIM, dropout=0.0))
    whole, _ = block(laws.stream(), {})
    alone, _ = block(laws.stream()[:, 3:4], {})
    torch.testing.assert_close(whole[:, 3:4], alone)
