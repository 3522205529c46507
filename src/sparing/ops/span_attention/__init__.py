"""Causal attention in which every head has its own window with a soft, learned edge.

Axes: B batch, H heads, T segment, M memory, S = M + T keys, K head width, W distances seen.
"""

from torch import Tensor

from sparing.ops.distance_attention import has_tiles
from sparing.ops.span_attention import banded
from sparing.ops.span_attention.reference import PersistentVectors, Ramp, log_mask, soft_mask

__all__ = ["PersistentVectors", "Ramp", "log_mask", "soft_mask", "span_attention"]


def span_attention(  # noqa: PLR0913  a public op
    query_BHTK: Tensor,
    keys_BHSK: Tensor,
    values_BHSK: Tensor,
    position_KW: Tensor,
    span: Tensor,
    *,
    ramp: Ramp,
    zeros: bool = True,
    seen_B: Tensor | None = None,
    persistent: PersistentVectors | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """softmax over distances x = 1 .. W of (q . (k + p_x) / sqrt(K) + log m_z(x)), times values.

    The last T keys are the queries' own positions, which queries do not see. Column j of `position`
    belongs to distance W - j. `span` holds z for each head (H,), each query (B, H, T) or each key
    by distance (B, 1, T, W); W must be at least `ramp.reach` of the longest span. Before the first
    key there are zero vectors, or, without `zeros`, nothing. With `seen` a lane's first key is that
    many positions before the segment, and older ones must be zero vectors. `persistent` vectors
    take part in the same softmax. `dropout` acts on the weights.
    """
    usual = zeros and persistent is None and span.ndim == 1
    if usual and has_tiles(keys_BHSK, query_BHTK.size(2)):
        # Triton is only installed, and only needed, where there is a GPU.
        from sparing.ops.span_attention import tiled

        return tiled.span_attention(
            query_BHTK, keys_BHSK, values_BHSK, position_KW, span, ramp=ramp, dropout=dropout
        )
    return banded.span_attention(
        query_BHTK,
        keys_BHSK,
        values_BHSK,
        position_KW,
        span,
        ramp=ramp,
        zeros=zeros,
        seen_B=seen_B,
        persistent=persistent,
        dropout=dropout,
    )
