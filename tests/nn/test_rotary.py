"""Rotary positions."""

import math

import pytest
import torch

from sparing.nn.rotary import PERIOD, Rotary
from sparing.ops.rotated_entries.reference import rotate


def scores(rotary: Rotary, start: int) -> torch.Tensor:
    torch.manual_seed(0)
    query, key = torch.randn(1, 6, 2, 8).double(), torch.randn(1, 6, 2, 8).double()
    at = torch.tensor([start])
    return torch.einsum(
        "bthk,bshk->bhts", rotate(query, rotary.table, at), rotate(key, rotary.table, at)
    )


@pytest.mark.parametrize("start", [1, 777, PERIOD - 3, 10 * PERIOD + 5])
def test_only_distances_matter_wherever_the_text_stands(start: int) -> None:
    rotary = Rotary(8).double()
    torch.testing.assert_close(scores(rotary, start), scores(rotary, 0), rtol=1e-5, atol=1e-5)


def test_lengths_are_kept_and_the_first_position_is_untouched() -> None:
    rotary, x = Rotary(8), torch.randn(2, 5, 1, 8)
    turned = rotate(x, rotary.table, torch.zeros(2, dtype=torch.int64))
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    torch.testing.assert_close(turned[:, 0], x[:, 0])
    assert (turned[:, 1:] - x[:, 1:]).abs().amax() > 0.1


def test_a_share_above_nothing_turns_at_least_one_pair() -> None:
    assert Rotary(4, rotary_fraction=0.25).rotated_pairs == 1
    assert Rotary(4, rotary_fraction=0.0).rotated_pairs == 0


@pytest.mark.parametrize("rotary_fraction", [1.0, 0.5, 0.25])
def test_the_pairs_that_turn_are_spread_from_one_radian_to_the_slowest(
    rotary_fraction: float,
) -> None:
    rotary = Rotary(round(8 / rotary_fraction), rotary_fraction=rotary_fraction)
    angle_F = torch.atan2(rotary.sine_PF[1], rotary.cosine_PF[1])
    wanted = [8192 ** (-pair / 3) for pair in range(4)] + [0.0] * (rotary.pairs - 4)
    # Rounded to a whole number of turns.
    assert angle_F.tolist() == pytest.approx(wanted, abs=math.pi / PERIOD)


def test_an_odd_width_is_refused() -> None:
    with pytest.raises(ValueError, match="even"):
        Rotary(7)


def test_pairs_that_do_not_turn_read_alike_everywhere() -> None:
    x = torch.randn(1, 4, 1, 16)
    turned = rotate(x, Rotary(16, rotary_fraction=0.25).table, torch.tensor([1000]))
    # Channels i and 8 + i are a pair; two of eight turn.
    still = [*range(2, 8), *range(10, 16)]
    assert torch.equal(turned[..., still], x[..., still])
    assert (turned[..., [0, 1, 8, 9]] - x[..., [0, 1, 8, 9]]).abs().amin() > 0
    assert torch.equal(rotate(x, Rotary(16, rotary_fraction=0.0).table, torch.tensor([9])), x)
