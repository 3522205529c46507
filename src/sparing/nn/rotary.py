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
    sign_21: Tensor

    def __init__(self, head_dim: int, *, slowest: float = 1 / 8192) -> None:
        """Pairs turn by 1 radian per position down to about `slowest`."""
        super().__init__()
        if head_dim % 2:
            raise ValueError(f"head_dim {head_dim} must be even: channels turn in pairs")
        self.pairs, self.slowest = head_dim // 2, slowest
        angle_PK = self._angles()
        self.register_buffer("cosine_PK", angle_PK.cos().float(), persistent=False)
        self.register_buffer("sine_PK", angle_PK.sin().float(), persistent=False)
        self.register_buffer("sign_21", torch.tensor([[1.0], [-1.0]]), persistent=False)

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
        cosine_BT11K, sine_BT11K = (
            table_PK[place_BT][:, :, None, None].to(x_BTHK.dtype)
            for table_PK in (self.cosine_PK, self.sine_PK)
        )
        # Turned over rather than cut and joined: compiled, a join reads all of its parts at every
        # place of the result.
        halves_BTH2K = x_BTHK.view(*x_BTHK.shape[:-1], 2, self.pairs)
        sine_BT12K = sine_BT11K * self.sign_21.to(x_BTHK.dtype)
        turned_BTH2K: Tensor = halves_BTH2K * cosine_BT11K + halves_BTH2K.flip(-2) * sine_BT12K
        return turned_BTH2K.flatten(-2)
