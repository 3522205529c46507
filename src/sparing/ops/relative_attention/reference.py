"""The definition: each score looks up the row of its distance. Axes: see the package."""

from typing import NamedTuple

import torch
from torch import Tensor

from sparing.ops.dropout import dropout as drop


class Bias(NamedTuple):
    """Two learned vectors that are added to every query."""

    content_HK: Tensor
    """Added where a key is matched by what it holds (the paper's u)."""
    position_HK: Tensor
    """Added where it is matched by how far away it is (the paper's v)."""


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
    """See the package's docstring."""
    segment, keys = query_BTHK.size(1), keys_BSHK.size(1)
    content_BHTS = torch.einsum("bthk,bshk->bhts", query_BTHK + bias.content_HK, keys_BSHK)
    position_BHTS = torch.einsum("bthk,shk->bhts", query_BTHK + bias.position_HK, positions_SHK)
    distance_TS = key_distances(segment, keys, query_BTHK.device)
    row_TS = (keys - 1 - distance_TS).clamp(max=keys - 1)
    position_BHTS = position_BHTS.gather(-1, row_TS.expand_as(position_BHTS))
    scores_BHTS = (content_BHTS + position_BHTS) * query_BTHK.size(-1) ** -0.5
    scores_BHTS = scores_BHTS.masked_fill(
        hidden_keys(segment, keys, reach, scores_BHTS.device), float("-inf")
    )
    if seen_B is not None:
        absent_B11S = invalid_keys(segment, keys, seen_B)[:, None, None]
        scores_BHTS = scores_BHTS.masked_fill(absent_B11S, float("-inf"))
    weights_BHTS = drop(torch.softmax(scores_BHTS, dim=-1), dropout)
    return torch.einsum("bhts,bshk->bthk", weights_BHTS.to(values_BSHK.dtype), values_BSHK)


def key_distances(segment: int, keys: int, device: torch.device) -> Tensor:
    """Return the distance from each query (rows) back to each key (columns); the future is < 0."""
    query_T1 = torch.arange(keys - segment, keys, device=device)[:, None]
    return query_T1 - torch.arange(keys, device=device)


def hidden_keys(segment: int, keys: int, reach: int | None, device: torch.device) -> Tensor:
    """Return which keys a query must not see: the future, and those beyond its reach."""
    query_T1 = torch.arange(keys - segment, keys, device=device)[:, None]
    key_S = torch.arange(keys, device=device)
    future_TS = key_S > query_T1
    return future_TS if reach is None else future_TS | (key_S <= query_T1 - max(1, reach))


def invalid_keys(segment: int, keys: int, seen_B: Tensor) -> Tensor:
    """Return which keys (B, S) are from before a lane's first token."""
    first_B1 = (keys - segment - seen_B)[:, None]
    return torch.arange(keys, device=seen_B.device) < first_B1
