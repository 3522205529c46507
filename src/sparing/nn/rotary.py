"""Periodic rotary positions (arXiv:2104.09864).

Axes: F pairs of channels, P period. Every frequency makes a whole number of turns in `PERIOD`
positions, so positions can be counted modulo it, and a stream of any length can use keys that were
rotated when they were stored.
"""

import math
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from sparing.ops.rotated_entries import RotaryTable

PERIOD = 1 << 15
SLOWEST = 1 / 8192
"""Radians per position of the pair that is rotated least."""


class Rotary(nn.Module):
    """The angles by which pairs of channels are rotated, proportional to the position."""

    cosine_PF: Tensor
    sine_PF: Tensor

    def __init__(self, head_dim: int, *, rotary_fraction: float = 1.0) -> None:
        """Pairs are rotated by between 1 radian per position and about `SLOWEST`.

        Only a share of them, `rotary_fraction`, is rotated, at least one pair unless it is 0. The
        others compare content regardless of distance.
        """
        super().__init__()
        if head_dim % 2:
            raise ValueError(f"head_dim {head_dim} must be even: channels are rotated in pairs")
        self.pairs = head_dim // 2
        self.rotated_pairs = max(round(rotary_fraction * self.pairs), int(rotary_fraction > 0))
        self.turns = self._turns()
        angle_PF = self._angles()
        self.register_buffer("cosine_PF", angle_PF.cos().float(), persistent=False)
        self.register_buffer("sine_PF", angle_PF.sin().float(), persistent=False)

    def _angles(self) -> Tensor:
        position_P = torch.arange(PERIOD, dtype=torch.float64)
        # Reduced modulo one turn in integers, so that late positions are as exact as early ones.
        phase_PF: Tensor = (position_P[:, None] * torch.tensor(self.turns)) % PERIOD
        return 2 * math.pi / PERIOD * phase_PF

    def _turns(self) -> list[int]:
        """The turns that each pair makes in one period."""
        rotated = self.rotated_pairs
        ratios = (SLOWEST ** (pair / max(1, rotated - 1)) for pair in range(rotated))
        turns = [max(1, round(ratio * PERIOD / (2 * math.pi))) for ratio in ratios]
        return turns + [0] * (self.pairs - rotated)

    @property
    def table(self) -> RotaryTable:
        """Cosine and sine of every angle."""
        if torch.onnx.is_in_onnx_export():
            rows = (ComputedRows(self.turns, function) for function in (torch.cos, torch.sin))
            return RotaryTable(*(cast("Tensor", each) for each in rows))
        return RotaryTable(self.cosine_PF, self.sine_PF)


class ComputedRows:
    """A table in an exported graph, where one of 16 MB would outweigh a small model.

    A row is computed when it is asked for.
    """

    def __init__(self, turns: Sequence[int], function: Callable[[Tensor], Tensor]) -> None:
        self.turns, self.function = turns, function

    def size(self, axis: int) -> int:
        """Rows, or columns."""
        return (PERIOD, len(self.turns))[axis]

    def __getitem__(self, position_BT: Tensor) -> Tensor:
        phase_BTF = position_BT[..., None] * torch.tensor(self.turns) % PERIOD
        return self.function(phase_BTF.float() * (2 * math.pi / PERIOD))
