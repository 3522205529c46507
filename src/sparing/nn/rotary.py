"""Rotary positions that never run out (arXiv:2104.09864).

Axes: F pairs of channels, P period. Every frequency makes a whole number of turns in `PERIOD`
positions, so positions may be counted modulo it, and a stream can go on for ever with keys that
were rotated when they were stored.
"""

import math

import torch
from torch import Tensor, nn

from sparing.ops.rotated_entries import Turns

PERIOD = 1 << 15


class Rotary(nn.Module):
    """The angles by which pairs of channels are rotated: they grow with the position."""

    cosine_PF: Tensor
    sine_PF: Tensor

    def __init__(
        self, head_dim: int, *, slowest: float = 1 / 8192, rotary_fraction: float = 1.0
    ) -> None:
        """Pairs turn by 1 radian per position down to about `slowest`.

        Only a share of them, `rotary_fraction`, turns at all, at least one pair unless it is 0: the
        others compare content at any distance.
        """
        super().__init__()
        if head_dim % 2:
            raise ValueError(f"head_dim {head_dim} must be even: channels turn in pairs")
        self.pairs, self.slowest = head_dim // 2, slowest
        self.rotary_fraction = max(round(rotary_fraction * self.pairs), int(rotary_fraction > 0))
        angle_PF = self._angles()
        self.register_buffer("cosine_PF", angle_PF.cos().float(), persistent=False)
        self.register_buffer("sine_PF", angle_PF.sin().float(), persistent=False)

    def _angles(self) -> Tensor:
        share_F = torch.arange(self.pairs, dtype=torch.float64) / max(1, self.rotary_fraction - 1)
        turns_F = (self.slowest**share_F * PERIOD / (2 * math.pi)).round().clamp(min=1)
        turns_F[self.rotary_fraction :] = 0
        place_P = torch.arange(PERIOD, dtype=torch.float64)
        # Reduced to one turn in whole numbers, so that late positions are as exact as early ones.
        turned_PF: Tensor = (place_P[:, None] * turns_F) % PERIOD
        return 2 * math.pi / PERIOD * turned_PF

    @property
    def turns(self) -> Turns:
        """Cosine and sine of every angle."""
        return Turns(self.cosine_PF, self.sine_PF)
