"""Head by head over the keys in its window: fast on a CPU, and anywhere for few queries."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from sparing.ops.linear import has_fast_products
from sparing.ops.window_attention import blocked, reference
from sparing.ops.window_attention.reference import Edge

ROWS = 128
"""Queries per step: few, so that little beyond a short window is computed."""
WHOLE = 64
"""Windows are read in multiples of this, so that vector instructions fit."""
FEWEST = 16
"""Fewest queries that pay for copying keys and values into the order that oneDNN reads."""


def window_attention(
    query_BTHK: Tensor, fresh_BT2HK: Tensor, memory_BM2HK: Tensor, edge: Edge
) -> Tensor:
    """See the package's docstring."""
    needs_grad = torch.is_grad_enabled() and any(
        x.requires_grad for x in (query_BTHK, fresh_BT2HK, edge.span_H)
    )
    reaches, begin, uneven = _bounds(edge)
    mixed = []
    for head, reach in enumerate(reaches):
        one, unseen = slice(head, head + 1), max(begin, memory_BM2HK.size(1) - reach)
        query_BT1K, fresh_BT21K = query_BTHK[:, :, one], fresh_BT2HK[:, :, :, one]
        memory_BM21K = memory_BM2HK[:, unseen:, :, one]
        own = Edge(edge.span_H[one], edge.first_B - unseen, edge.ramp)
        mixed.append(
            reference.window_attention(query_BT1K, fresh_BT21K, memory_BM21K, own)
            if needs_grad
            else _read_head(query_BT1K, fresh_BT21K, memory_BM21K, own, reach=reach, uneven=uneven)
        )
    return torch.cat(mixed, dim=2)


def _bounds(edge: Edge) -> tuple[list[int], int, bool]:
    """Return each head's reach, the first valid entry of any lane, and whether lanes differ.

    All in one transfer: on a GPU each one waits for the device.
    """
    reach_H = edge.span_H.detach().double() + edge.ramp
    first = torch.stack(edge.first_B.aminmax()).to(reach_H.dtype)
    *reaches, begin, latest = torch.cat([reach_H, first]).tolist()
    return [math.ceil(reach / WHOLE) * WHOLE for reach in reaches], int(begin), latest > begin


def _read_head(  # noqa: PLR0913  all but four are keyword-only
    query_BT1K: Tensor,
    fresh_BT21K: Tensor,
    memory_BM21K: Tensor,
    edge: Edge,
    *,
    reach: int,
    uneven: bool,
) -> Tensor:
    """One head without gradients: torch's kernel, a few queries and their keys at a time."""
    segment, memory = query_BT1K.size(1), memory_BM21K.size(1)
    if segment >= FEWEST and has_fast_products(query_BT1K, fresh_BT21K):
        both = (x[:, :, :, 0].permute(2, 0, 1, 3) for x in (memory_BM21K, fresh_BT21K))
        entries_2BSK, query_BTK = torch.cat(list(both), dim=2), query_BT1K[:, :, 0]
        mixed_BTK = blocked.read_head(query_BTK, entries_2BSK, edge, reach=reach, uneven=uneven)
        return mixed_BTK[:, :, None]
    entries_BS21K = torch.cat([memory_BM21K.to(fresh_BT21K.dtype), fresh_BT21K], dim=1)
    query_B1TK = query_BT1K.transpose(1, 2).to(fresh_BT21K.dtype)
    keys_B1SK, values_B1SK = entries_BS21K.permute(2, 0, 3, 1, 4).unbind()
    mixed = []
    for start in range(0, segment, ROWS):
        end = min(start + ROWS, segment)
        seen = slice(max(0, memory + start - reach), memory + end)
        bias = _bias(edge, end - start, seen.stop - seen.start)
        if uneven:
            bias = _mask_invalid(bias, edge.first_B - seen.start)
        mixed.append(
            F.scaled_dot_product_attention(
                query_B1TK[:, :, start:end],
                keys_B1SK[:, :, seen],
                values_B1SK[:, :, seen],
                bias.to(query_B1TK.dtype),
            )
        )
    return torch.cat(mixed, dim=2).transpose(1, 2)


def _bias(edge: Edge, queries: int, keys: int) -> Tensor:
    """Return log m (T, S) for the queries of the last keys, -inf for the future.

    It depends on distances only, so one row of them is computed and shifted for each query.
    """
    distance = torch.arange(keys - 1, -queries, -1, device=edge.span_H.device)
    inside = ((edge.ramp + edge.span_H - distance) / edge.ramp).clamp(0, 1) * (distance >= 0)
    return inside.log().unfold(0, keys, 1).flip(0)


def _mask_invalid(bias_TS: Tensor, first_B: Tensor) -> Tensor:
    """Return the bias of each lane (B, 1, T, S), -inf before its first valid entry."""
    key_S = torch.arange(bias_TS.size(1), device=bias_TS.device)
    return bias_TS.masked_fill((key_S < first_B[:, None])[:, None, None], -torch.inf)
