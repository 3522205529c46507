"""Causal attention of one wide head over memory and the current segment.

Axes: B batch, T segment, S = memory + T keys, D width.
"""

from torch import Tensor

from sparing.ops.single_head_attention import reference


def single_head_attention(
    query_BTD: Tensor,
    keys_BSD: Tensor,
    values_BSD: Tensor,
    *,
    seen_B: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Query t sees the S - T memory slots and positions up to t of its own segment.

    With `seen` only that many newest slots of a lane's memory exist. Scores are scaled by
    1/sqrt(D). `dropout` acts on the attention weights.
    """
    return reference.single_head_attention(
        query_BTD, keys_BSD, values_BSD, seen_B=seen_B, dropout=dropout
    )
