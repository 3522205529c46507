"""Rotary positions that never run out (arXiv:2104.09864).

Axes: B batch, T segment, H heads, K head width, P period. Every frequency makes a whole
number of turns in `PERIOD` positions, so positions may be counted modulo it, and a stream can go on
for ever with keys that were rotated when they were stored.
"""

import math

import torch
from torch import Tensor, nn

PERIOD = 1 << 15


class Rotary(nn.Module):
    """Rotates pairs of channels by angles that grow with the position."""

    cosine_PK: Tensor
    sine_PK: Tensor

    def __init__(self, head_dim: int, *, slowest: float = 1 / 8192) -> None:
        """Pairs turn by 1 radian per position down to about `slowest`."""
        super().__init__()
        if head_dim % 2:
            raise ValueError(f"head_dim {head_dim} must be even: channels turn in pairs")
        self.pairs, self.slowest = head_dim // 2, slowest
        angle_PK = self._angles()
        self.register_buffer("cosine_PK", angle_PK.cos().float(), persistent=False)
        self.register_buffer("sine_PK", angle_PK.sin().float(), persistent=False)

    def _angles(self) -> Tensor:
        share_K = torch.arange(self.pairs, dtype=torch.float64) / max(1, self.pairs - 1)
        turns_K = (self.slowest**share_K * PERIOD / (2 * math.pi)).round().clamp(min=1)
        place_P = torch.arange(PERIOD, dtype=torch.float64)
        # Reduced to one turn in whole numbers, so that late positions are as exact as early ones.
        turned_PK: Tensor = (place_P[:, None] * turns_K) % PERIOD
        return 2 * math.pi / PERIOD * turned_PK

    def forward(self, x_BTHK: Tensor, start_B: Tensor) -> Tensor:
        """Rotate the vectors of positions start, start + 1 ... of each lane."""
        place_BT = start_B[:, None] + torch.arange(x_BTHK.size(1), device=x_BTHK.device)
        place_BT = place_BT % PERIOD
        cosine_BT1K, sine_BT1K = (
            table_PK[place_BT].unsqueeze(2).to(x_BTHK.dtype)
            for table_PK in (self.cosine_PK, self.sine_PK)
        )
        one, two = x_BTHK.chunk(2, dim=-1)
        turned = (one * cosine_BT1K + two * sine_BT1K, two * cosine_BT1K - one * sine_BT1K)
        return torch.cat(turned, dim=-1)
