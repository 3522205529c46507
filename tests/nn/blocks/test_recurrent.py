"""Recurrent layers as branches."""

from typing import Literal

import pytest
from tests.nn.blocks import laws

from sparing.nn.blocks.recurrent import RecurrentBlock


@pytest.mark.parametrize("core", ["lstm", "qrnn"])
def test_it_obeys_the_laws(core: Literal["lstm", "qrnn"]) -> None:
    laws.everything(RecurrentBlock(laws.DIM, core=core, dropout=0.0))


@pytest.mark.parametrize("core", ["lstm", "qrnn"])
def test_an_idle_block_starts_anew(core: Literal["lstm", "qrnn"]) -> None:
    block = laws.lively(RecurrentBlock(laws.DIM, core=core, dropout=0.0))
    _, state = laws.read(block, laws.stream(), 6)
    assert all(tensor.any() for tensor in state.values())
    idle = block.idle(laws.stream(), state)
    assert idle.keys() == state.keys()
    assert not any(tensor.any() for tensor in idle.values())


def test_the_work_of_an_lstm_is_eight_matrices() -> None:
    block = RecurrentBlock(laws.DIM, core="lstm", dropout=0.0)
    assert block.flops_per_token() == 2 * 8 * laws.DIM**2
