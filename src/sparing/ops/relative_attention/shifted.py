"""The same without a lookup: rows of one matrix product are shifted into place by a view.

A product of T queries with S positions has distance S - 1 in its first column; row t has to move
T - 1 - t columns to the left. With one more column in front, dropping the first T numbers of the
matrix and cutting what is left into rows of S does exactly that (arXiv:1901.02860, appendix B).
"""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from sparing.ops.relative_attention.reference import distances, hidden

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
    # Scaling the T queries spares a pass over all scores.
    scale = query_BTHK.size(-1) ** -0.5
    content_BTHK = (query_BTHK + bias.content_HK.to(query_BTHK.dtype)) * scale
    position_BTHK = (query_BTHK + bias.position_HK.to(query_BTHK.dtype)) * scale
    scores_BHTS = content_BTHK.transpose(1, 2) @ keys_BSHK.permute(0, 2, 3, 1)
    scores_BHTS = scores_BHTS + _by_distance(position_BTHK, positions_SHK)
    if segment > 1 or (reach is not None and keys > reach):
        unseen_TS = hidden(distances(segment, keys, scores_BHTS.device), reach)
        scores_BHTS = scores_BHTS.masked_fill(unseen_TS, float("-inf"))
    weights_BHTS = F.dropout(torch.softmax(scores_BHTS, dim=-1), dropout, training=dropout > 0)
    mixed_BHTK = weights_BHTS.to(values_BSHK.dtype) @ values_BSHK.transpose(1, 2)
    return mixed_BHTK.transpose(1, 2)


def _by_distance(query_BTHK: Tensor, positions_SHK: Tensor) -> Tensor:
    """Scores of every query with the position each key has for it; the future holds garbage."""
    segment, keys = query_BTHK.size(1), positions_SHK.size(0)
    if segment == 1:
        return torch.einsum("bthk,shk->bhts", query_BTHK, positions_SHK)
    # The extra column comes out of the product itself: padding the scores would copy them all.
    padded_XHK = F.pad(positions_SHK, (0, 0, 0, 0, 1, 0))
    scores_BHTX = torch.einsum("bthk,xhk->bhtx", query_BTHK, padded_XHK)
    moved_BHN = scores_BHTX.flatten(-2)[..., segment:]
    return moved_BHN.view(*moved_BHN.shape[:-1], segment, keys)
