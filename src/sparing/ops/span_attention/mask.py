"""The soft edge of a span: how much of the position at a distance a head may use.

With ramp R and offset o the mask at distance x is clamp((R + o + z - x) / R, 0, 1); o is 0 in the
paper (arXiv:1905.07799) and 1 in its code.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

FLOOR = 1e-30
"""Stands for a mask of exactly 0 at the far end of a ramp, so that its logarithm has a slope."""


@dataclass(frozen=True, slots=True)
class Ramp:
    """The shape of a span's far edge."""

    length: int = 32
    """Positions over which the mask falls from 1 to 0."""
    offset: int = 1
    """Positions the ramp is shifted outwards: 1 in the original's code, 0 in its paper."""
    closed: bool = False
    """Whether both ends of the ramp pass gradient, as the original's clamp does at whole spans.

    By default only the far end does, which makes the gradient the derivative towards longer spans.
    """

    def reach(self, span: float) -> int:
        """The farthest distance that a head of this span uses, or would if it grew a little."""
        return int(self.length + self.offset + span)


def soft_mask(span: Tensor, distance: Tensor, ramp: Ramp) -> Tensor:
    """The mask itself, with the ramp's own gradient towards `span`; the two broadcast."""
    raw = _raw(span, distance, ramp)
    slope = _sloping(raw, ramp) / ramp.length
    return raw.clamp(0, 1) + slope * (span - span.detach())


def log_mask(span: Tensor, distance: Tensor, ramp: Ramp) -> Tensor:
    """Logarithm of `soft_mask`: -inf out of reach, and a finite gradient everywhere else.

    d log(m) / dz = 1 / (R m) is infinite where m = 0 while the softmax's own gradient is 0 there.
    With m raised to `FLOOR` at the end of the ramp both are finite and their product is exact; the
    position's weight stays below any rounding.
    """
    raw = _raw(span, distance, ramp)
    mask = raw.clamp(FLOOR, 1)
    logarithm = mask.log().masked_fill(raw < 0, -torch.inf)
    if not span.requires_grad:
        return logarithm
    slope = _sloping(raw, ramp) / (ramp.length * mask)
    return logarithm + slope * (span - span.detach())


def _raw(span: Tensor, distance: Tensor, ramp: Ramp) -> Tensor:
    return (ramp.length + ramp.offset + span.detach() - distance) / ramp.length


def _sloping(raw: Tensor, ramp: Ramp) -> Tensor:
    return (raw >= 0) & ((raw <= 1) if ramp.closed else (raw < 1))
