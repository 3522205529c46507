"""Causal attention by content; each head has its own window with a soft edge.

Axes: B batch, T segment, M memory, S = M + T, H heads, K head width; 2: a key and its value.
"""

import torch
from torch import Tensor

from sparing.ops.window_attention import sliced
from sparing.ops.window_attention.reference import Edge, window_weights

__all__ = ["SHORTEST", "Edge", "window_attention", "window_weights"]

SHORTEST = 16
"""Fewest queries that fill a tile of the fused kernel."""
WIDTHS = (16, 32, 64, 128, 256)
"""Head widths that the fused kernel has tiles for."""


def window_attention(
    query_BTHK: Tensor, fresh_BT2HK: Tensor, memory_BM2HK: Tensor, edge: Edge
) -> Tensor:
    """softmax over distances x >= 0 of (q . k / sqrt(K) + log m(x)), times values: (B, T, H, K).

    Keys and values are those of `memory`, which get no gradient, followed by `fresh`, those of the
    queries' own positions.
    """
    if not (query_BTHK.is_cuda and _has_tiles(query_BTHK, fresh_BT2HK)):
        return sliced.window_attention(query_BTHK, fresh_BT2HK, memory_BM2HK, edge)
    # Triton is only installed, and only needed, where there is a GPU.
    from sparing.ops.window_attention.fused import window_attention as kernel

    return kernel(query_BTHK, fresh_BT2HK, memory_BM2HK, edge)


def _has_tiles(query_BTHK: Tensor, fresh_BT2HK: Tensor) -> bool:
    """Whether the fused kernel has tiles for these shapes."""
    segment, width = query_BTHK.size(1), query_BTHK.size(3)
    # It computes in the precision of the entries; Triton has no float64 products.
    return segment >= SHORTEST and width in WIDTHS and fresh_BT2HK.dtype != torch.float64
