"""The definition: every score, every mask."""

import math

import torch
from torch import Tensor

from sparing.ops.window_attention.edge import Edge, mask


def window_attention(
    query_BTHK: Tensor, fresh_BT2HK: Tensor, memory_BM2HK: Tensor, edge: Edge
) -> Tensor:
    """See the package's docstring."""
    entries_BS2HK = torch.cat([memory_BM2HK.detach().to(fresh_BT2HK.dtype), fresh_BT2HK], dim=1)
    keys_BSHK, values_BSHK = entries_BS2HK.unbind(2)
    scores_BHTS = torch.einsum("bthk,bshk->bhts", query_BTHK, keys_BSHK)
    scores_BHTS = scores_BHTS / math.sqrt(query_BTHK.size(-1))
    weights_BHTS = edged_softmax(scores_BHTS, mask(edge, query_BTHK.size(1), keys_BSHK.size(1)))
    return torch.einsum("bhts,bshk->bthk", weights_BHTS.to(values_BSHK.dtype), values_BSHK)


def edged_softmax(scores_BHTS: Tensor, mask_BHTS: Tensor) -> Tensor:
    """softmax(s + log m) as m exp(s) / sum m exp(s): no logarithm, so no infinite slope."""
    wide = torch.promote_types(scores_BHTS.dtype, torch.float32)
    seen_BHTS = scores_BHTS.to(wide).masked_fill(mask_BHTS.detach() == 0, -torch.inf)
    raised_BHTS = (seen_BHTS - seen_BHTS.amax(-1, keepdim=True).detach()).exp() * mask_BHTS
    return raised_BHTS / raised_BHTS.sum(-1, keepdim=True)
