"""Causal attention in which each head sees a window of its own with a soft edge; by content only.

Axes: B batch, T segment, M memory, S = M + T, H heads, K head width; 2: a key and its value.
"""

import torch
from torch import Tensor

from sparing.ops.window_attention import sliced
from sparing.ops.window_attention.edge import Edge

__all__ = ["SHORTEST", "Edge", "window_attention"]

SHORTEST = 16
"""Queries below which the fused kernel could not fill a tile."""
WIDTHS = (16, 32, 64, 128, 256)
"""Of heads that the fused kernel has tiles for."""


def window_attention(
    query_BTHK: Tensor, fresh_BT2HK: Tensor, memory_BM2HK: Tensor, edge: Edge
) -> Tensor:
    """softmax over distances x >= 0 of (q . k / sqrt(K) + log m(x)), times values: (B, T, H, K).

    Keys and values are those of `memory`, which get no gradient, and behind them `fresh`, the
    entries of the queries' own positions.
    """
    if not (query_BTHK.is_cuda and _tiled(query_BTHK, fresh_BT2HK)):
        return sliced.window_attention(query_BTHK, fresh_BT2HK, memory_BM2HK, edge)
    # Triton is there where there is a GPU, and only there is it needed.
    from sparing.ops.window_attention.fused import window_attention as kernel

    return kernel(query_BTHK, fresh_BT2HK, memory_BM2HK, edge)


def _tiled(query_BTHK: Tensor, fresh_BT2HK: Tensor) -> bool:
    """Whether the fused kernel has tiles for them."""
    segment, width = query_BTHK.size(1), query_BTHK.size(3)
    # It computes in the entries' precision, whatever the queries', and Triton not in float64.
    return segment >= SHORTEST and width in WIDTHS and fresh_BT2HK.dtype != torch.float64
