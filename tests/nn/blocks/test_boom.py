"""Boom as a branch."""

import torch
from tests.nn.blocks import laws

from sparing.nn.blocks.boom import BoomBlock


def test_it_obeys_the_laws() -> None:
    laws.everything(BoomBlock(laws.DIM, 4 * laws.DIM, dropout=0.0))


def test_it_works_position_by_position() -> None:
    block = laws.lively(BoomBlock(laws.DIM, 2 * laws.DIM, dropout=0.0))
    whole, _ = block(laws.stream(), {})
    alone, _ = block(laws.stream()[:, 3:4], {})
    torch.testing.assert_close(whole[:, 3:4], alone)
