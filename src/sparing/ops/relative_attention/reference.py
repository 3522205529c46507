"""The definition: each score looks up the row of its own distance."""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from sparing.ops.relative_attention import Bias


def relative_attention(  # noqa: PLR0913  two are keyword-only
    query_BTHK: Tensor,
    keys_BSHK: Tensor,
    values_BSHK: Tensor,
    positions_SHK: Tensor,
    bias: "Bias",
    *,
    reach: int | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """See the package's docstring."""
    segment, keys = query_BTHK.size(1), keys_BSHK.size(1)
    content_BHTS = torch.einsum("bthk,bshk->bhts", query_BTHK + bias.content_HK, keys_BSHK)
    position_BHTS = torch.einsum("bthk,shk->bhts", query_BTHK + bias.position_HK, positions_SHK)
    distance_TS = distances(segment, keys, query_BTHK.device)
    row_TS = (keys - 1 - distance_TS).clamp(max=keys - 1)
    position_BHTS = position_BHTS.gather(-1, row_TS.expand_as(position_BHTS))
    scores_BHTS = (content_BHTS + position_BHTS) * query_BTHK.size(-1) ** -0.5
    scores_BHTS = scores_BHTS.masked_fill(hidden(distance_TS, reach), float("-inf"))
    weights_BHTS = F.dropout(torch.softmax(scores_BHTS, dim=-1), dropout, training=dropout > 0)
    return torch.einsum("bhts,bshk->bthk", weights_BHTS.to(values_BSHK.dtype), values_BSHK)


def distances(segment: int, keys: int, device: torch.device) -> Tensor:
    """How many positions back each key (columns) lies from each query (rows); future ones < 0."""
    query_T1 = torch.arange(segment, device=device)[:, None] + (keys - segment)
    return query_T1 - torch.arange(keys, device=device)


def hidden(distance_TS: Tensor, reach: int | None) -> Tensor:
    """Which keys a query must not see: the future, and what lies beyond its reach."""
    if reach is None:
        return distance_TS < 0
    return (distance_TS < 0) | (distance_TS >= max(1, reach))
