"""Attention to keys in any order, told apart by their distance: for memories of fixed size.

Axes: B batch, H heads, T segment, R slots, K head width, W distances.
"""

import torch
from torch import Tensor

from sparing.ops.span_attention.reference import PersistentVectors, Ramp, log_mask, rows


def ring_span_attention(  # noqa: PLR0913  a public op
    query_BHTK: Tensor,
    keys_BHRK: Tensor,
    values_BHRK: Tensor,
    position_KW: Tensor,
    span: Tensor,
    distance_BTR: Tensor,
    *,
    ramp: Ramp,
    persistent: PersistentVectors | None = None,
) -> Tensor:
    """As `span_attention`, without gradients; keys at distances outside 1 .. W are not seen."""
    query_BHTK, width = query_BHTK * query_BHTK.size(-1) ** -0.5, position_KW.size(1)
    placed_BHTW = query_BHTK @ position_KW.to(query_BHTK.dtype)
    column_BHTR = (width - distance_BTR).clamp(0, width - 1)[:, None]
    column_BHTR = column_BHTR.expand(-1, query_BHTK.size(1), -1, -1)
    scores = query_BHTK @ keys_BHRK.mT + placed_BHTW.gather(-1, column_BHTR)
    near_BTR = (distance_BTR >= 1) & (distance_BTR <= width)
    far_BTR = distance_BTR.float().masked_fill(~near_BTR, torch.inf)
    scores = scores + log_mask(rows(span.detach()), far_BTR[:, None], ramp)
    if persistent is not None:
        fixed = query_BHTK @ persistent.keys_HKN.to(query_BHTK.dtype)
        scores = torch.cat([scores, fixed.to(scores.dtype)], dim=-1)
    weights, slots = torch.softmax(scores, dim=-1).to(values_BHRK.dtype), keys_BHRK.size(2)
    mixed_BHTK = weights[..., :slots] @ values_BHRK
    if persistent is not None:
        mixed_BHTK = mixed_BHTK + weights[..., slots:] @ persistent.values_HNK.to(weights.dtype)
    return mixed_BHTK
