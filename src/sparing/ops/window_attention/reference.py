"""The definition: every score and every mask. Axes: see the package's docstring."""

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Edge(NamedTuple):
    """m(x) = clamp((ramp + z - x) / ramp, 0, 1) at distance x, for a head of span z."""

    span_H: Tensor
    """z of each head; gets a gradient from its ramp."""
    first_B: Tensor
    """The first valid entry of each lane's memory."""
    ramp: int
    """Positions over which a window fades out."""


def window_attention(
    query_BTHK: Tensor, fresh_BT2HK: Tensor, memory_BM2HK: Tensor, edge: Edge
) -> Tensor:
    """See the package's docstring."""
    weights_BHTS = window_weights(query_BTHK, fresh_BT2HK, memory_BM2HK, edge)
    values_BSHK = _join(fresh_BT2HK, memory_BM2HK)[:, :, 1]
    return torch.einsum("bhts,bshk->bthk", weights_BHTS.to(values_BSHK.dtype), values_BSHK)


def window_weights(
    query_BTHK: Tensor, fresh_BT2HK: Tensor, memory_BM2HK: Tensor, edge: Edge
) -> Tensor:
    """Return the weights (B, H, T, S) by which `window_attention` mixes the values."""
    keys_BSHK = _join(fresh_BT2HK, memory_BM2HK)[:, :, 0]
    scores_BHTS = torch.einsum("bthk,bshk->bhts", query_BTHK, keys_BSHK)
    scores_BHTS = scores_BHTS / math.sqrt(query_BTHK.size(-1))
    return masked_softmax(scores_BHTS, mask(edge, query_BTHK.size(1), keys_BSHK.size(1)))


def _join(fresh_BT2HK: Tensor, memory_BM2HK: Tensor) -> Tensor:
    return torch.cat([memory_BM2HK.detach().to(fresh_BT2HK.dtype), fresh_BT2HK], dim=1)


def mask(edge: Edge, segment: int, keys: int) -> Tensor:
    """Return m for every query and key (B, H, T, S); zero for the future and invalid entries."""
    key_S = torch.arange(keys, device=edge.span_H.device)
    distance_TS = key_S[keys - segment :, None] - key_S
    raw_HTS = (edge.ramp + edge.span_H[:, None, None] - distance_TS) / edge.ramp
    valid_B11S = (key_S >= edge.first_B[:, None])[:, None, None]
    return raw_HTS.clamp(0, 1) * ((distance_TS >= 0) & valid_B11S)


def masked_softmax(scores_BHTS: Tensor, mask_BHTS: Tensor) -> Tensor:
    """Return softmax(s + log m) as m exp(s) / sum m exp(s): without an infinite slope of log."""
    wide = torch.promote_types(scores_BHTS.dtype, torch.float32)
    seen_BHTS = scores_BHTS.to(wide).masked_fill(mask_BHTS.detach() == 0, -torch.inf)
    raised_BHTS = (seen_BHTS - seen_BHTS.amax(-1, keepdim=True).detach()).exp() * mask_BHTS
    return raised_BHTS / raised_BHTS.sum(-1, keepdim=True)
