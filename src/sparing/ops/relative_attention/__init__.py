"""Causal attention that scores keys by content and by distance (arXiv:1901.02860, section 3.3).

Axes: B batch, T segment, M memory, S = M + T keys, H heads, K head dim.
"""

import torch
from torch import Tensor

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
    grad = torch.is_grad_enabled()
    attend = shifted.relative_attention if grad else fused.relative_attention
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
