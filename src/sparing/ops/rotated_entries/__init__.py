"""The inputs of rotary attention: queries and keys, normalised and rotated, and values.

Axes: B batch, T segment, H heads, K head width, F = K / 2 pairs of channels, P period of the
positions; 3: query, key and value as projected, 2: a key and its value.
"""

import torch
from torch import Tensor

from sparing.ops.rotated_entries import reference
from sparing.ops.rotated_entries.reference import RotaryTable

__all__ = ["RotaryTable", "rotated_entries"]

WIDTHS = (16, 32, 64, 128, 256)
"""Head widths that the fused kernel has tiles for."""


def rotated_entries(
    three_BT3HK: Tensor,
    gain_H: Tensor,
    table: RotaryTable,
    start_B: Tensor,
    before_BHK: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return queries (B, T, H, K) and entries (B, T, 2, H, K) of positions start, start + 1 ...

    Queries and keys are divided by their root mean square and rotated; each head's queries are
    multiplied by its gain. Values are not changed. `before` holds the last keys of the previous
    segment, as projected: with it, each value is paired with the key of the position before it.
    It gets no gradient.
    """
    supported = three_BT3HK.size(-1) in WIDTHS and three_BT3HK.dtype != torch.float64
    if not (three_BT3HK.is_cuda and supported):
        return reference.rotated_entries(three_BT3HK, gain_H, table, start_B, before_BHK)
    # Triton is only installed, and only needed, where there is a GPU.
    from sparing.ops.rotated_entries.fused import rotated_entries as kernel

    return kernel(three_BT3HK, gain_H, table, start_B, before_BHK)
