"""What an attention is fed: queries and keys of one length, rotated by position, and values.

Axes: B batch, T segment, H heads, K head width, F = K / 2 pairs of channels, P period of the
positions; 3: query, key and value as projected, 2: a key and its value.
"""

import torch
from torch import Tensor

from sparing.ops.rotated_entries import reference
from sparing.ops.rotated_entries.turns import Turns

__all__ = ["Turns", "rotated_entries"]

WIDTHS = (16, 32, 64, 128, 256)
"""Of heads that the fused kernel has tiles for."""


def rotated_entries(
    three_BT3HK: Tensor,
    gain_H: Tensor,
    turns: Turns,
    start_B: Tensor,
    before_BHK: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Queries (B, T, H, K) and entries (B, T, 2, H, K) of positions start, start + 1 ...

    Queries and keys are divided by their root mean square and rotated; each head's queries are
    multiplied by its gain. Values stay as they are. With `before`, the last keys of the segment
    before as projected, each value goes with the key of the position before it; no gradient goes
    back to them.
    """
    known = three_BT3HK.size(-1) in WIDTHS and three_BT3HK.dtype != torch.float64
    if not (three_BT3HK.is_cuda and known):
        return reference.rotated_entries(three_BT3HK, gain_H, turns, start_B, before_BHK)
    # Triton is there where there is a GPU, and only there is it needed.
    from sparing.ops.rotated_entries.fused import rotated_entries as kernel

    return kernel(three_BT3HK, gain_H, turns, start_B, before_BHK)
