"""Windowed attention over memories of fixed size, one for each head's own window.

Axes: B batch, T segment, R slots, H heads, K head width; 2: key and value.
"""

import torch
from torch import Tensor

from sparing.nn.ring import before_first, head_rings, ring_distances, write_head_rings
from sparing.nn.state import State
from sparing.ops.window_attention.ring import ring_window_attention


def attend_to_rings(
    query_BTHK: Tensor, fresh_BT2HK: Tensor, state: State, span_H: Tensor, ramp: int
) -> tuple[Tensor, State]:
    """Write a segment into the rings of all heads; return what the heads mix, and the rings."""
    seen_B, mixed = state["seen"], []
    rings = write_head_rings(state, fresh_BT2HK[:, :, 0], fresh_BT2HK[:, :, 1])
    for heads, keys_BHRK, values_BHRK in head_rings(rings):
        distance_BTR = ring_distances(seen_B, query_BTHK.size(1), keys_BHRK.size(2))
        empty_BTR = before_first(distance_BTR, seen_B)
        mixed_BTHK = ring_window_attention(
            query_BTHK[:, :, heads],
            keys_BHRK,
            values_BHRK,
            distance_BTR.masked_fill(empty_BTR, -1),
            span_H[heads],
            ramp,
        )
        mixed.append(mixed_BTHK)
    return torch.cat(mixed, dim=2), rings
