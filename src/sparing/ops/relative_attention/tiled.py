"""The form for training on a GPU: scores by distance from one product, never shifted.

Axes: see the package; W distances seen.
"""

import torch
from torch import Tensor

from sparing.ops.distance_attention.fused import distance_attention
from sparing.ops.relative_attention.reference import Bias
from sparing.ops.relative_attention.shifted import biased_queries


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
    batch, memory = query_BTHK.size(0), keys_BSHK.size(1) - query_BTHK.size(1)
    content_BTHK, position_BTHK = biased_queries(query_BTHK.to(keys_BSHK.dtype), bias)
    positions_WHK = positions_SHK if reach is None else positions_SHK[-max(1, reach) :]
    # Heads first: so the product leaves its numbers, without a copy.
    bias_HBTW = torch.einsum("bthk,whk->hbtw", position_BTHK, positions_WHK.to(keys_BSHK.dtype))
    oldest_B = torch.full((batch,), memory, device=query_BTHK.device) if seen_B is None else seen_B
    return distance_attention(
        content_BTHK,
        keys_BSHK,
        values_BSHK,
        bias_HBTW.transpose(0, 1),
        nearest=0,
        first_B=(memory - oldest_B).clamp(min=0),
        dropout=dropout,
    )
