"""The definition, in plain torch: every key of every query is gathered, nothing is shared."""

import torch
import torch.nn.functional as F
from torch import Tensor

from sparing.ops.span_attention.layout import (
    Persistent,
    before_start,
    begins,
    distances,
    rows,
    slots,
)
from sparing.ops.span_attention.mask import Ramp, soft_mask


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
    persistent: Persistent | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """See the package's docstring."""
    segment, memory = query_BHTK.size(2), keys_BHSK.size(2) - query_BHTK.size(2)
    width = position_KW.size(1)
    slot_TW = slots(segment, memory, width, device=query_BHTK.device)
    there_TW1 = (slot_TW >= 0).to(keys_BHSK)[..., None]
    keys_BHTWK = keys_BHSK[:, :, slot_TW.clamp(min=0)] * there_TW1
    values_BHTWK = values_BHSK[:, :, slot_TW.clamp(min=0)] * there_TW1
    query_BHT1K = query_BHTK[..., None, :] * query_BHTK.size(-1) ** -0.5
    scores = (query_BHT1K * (keys_BHTWK + position_KW.mT)).sum(-1)
    mask = soft_mask(rows(span), distances(width, like=scores), ramp).expand_as(scores)
    if not zeros:
        gone = before_start(slot_TW, begins(memory, seen_B), alone=persistent is None)
        scores, mask = scores.masked_fill(gone, -torch.inf), mask.masked_fill(gone, 0)
    if persistent is not None:
        scores = torch.cat([scores, query_BHT1K[..., 0, :] @ persistent.keys_HKN], dim=-1)
        mask = F.pad(mask, (0, persistent.keys_HKN.size(-1)), value=1.0)
    top = scores.detach().masked_fill(mask <= 0, -torch.inf).amax(-1, keepdim=True)
    share = (scores - top).exp() * mask
    weights = F.dropout(share / share.sum(-1, keepdim=True), dropout, training=dropout > 0)
    mixed_BHTK = (weights[..., :width, None] * values_BHTWK).sum(-2)
    if persistent is not None:
        mixed_BHTK = mixed_BHTK + weights[..., width:] @ persistent.values_HNK
    return mixed_BHTK
