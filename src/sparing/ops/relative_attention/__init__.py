"""Causal attention that scores keys by content and by distance (arXiv:1901.02860, section 3.3).

Axes: B batch, T segment, M memory, S = M + T keys, H heads, K head dim.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from sparing.ops.distance_attention import has_tiles
from sparing.ops.relative_attention import fused, shifted
from sparing.ops.relative_attention.reference import Bias

__all__ = ["Bias", "relative_attention"]


def relative_attention(  # noqa: PLR0913  three are keyword-only
    query_BTHK: Tensor,
    keys_BSHK: Tensor,
    values_BSHK: Tensor,
    positions_SHK: Tensor,
    bias: Bias,
    *,
    reach: int | None = None,
    seen_B: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Query t sees the S - T memory slots and positions up to t of its own segment.

    The score is ((q + u) . k + (q + v) . r) / sqrt(K) with r the row of `positions` that belongs
    to the distance; rows are ordered like keys, so the last is distance 0. With `reach` a query
    sees only that many newest keys, its own included; with `seen` only that many newest slots of a
    lane's memory are valid. `dropout` acts on the weights.
    """
    attend = _choose(keys_BSHK, query_BTHK.size(1))
    return attend(
        query_BTHK,
        keys_BSHK,
        values_BSHK,
        positions_SHK,
        bias,
        reach=reach,
        seen_B=seen_B,
        dropout=dropout,
    )


def _choose(keys_BSHK: Tensor, segment: int) -> Callable[..., Tensor]:
    if not torch.is_grad_enabled():
        return fused.relative_attention
    if not has_tiles(keys_BSHK, segment):
        return shifted.relative_attention
    # Triton is only installed, and only needed, where there is a GPU.
    from sparing.ops.relative_attention import tiled

    return tiled.relative_attention
