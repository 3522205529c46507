"""The form for training: rows of one matrix product are shifted into place by a view.

A product of T queries with S positions has distance S - 1 in its first column; row t has to move
T - 1 - t columns to the left. With one more column in front, dropping the first T numbers of the
matrix and cutting what is left into rows of S does exactly that (arXiv:1901.02860, appendix B).
"""

import torch
from torch import Tensor

from sparing.ops.dropout import dropout as drop
from sparing.ops.relative_attention.reference import Bias, hidden_keys, invalid_keys


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
    content_BTHK, position_BTHK = biased_queries(query_BTHK, bias)
    scores_BHTS = content_BTHK.transpose(1, 2) @ keys_BSHK.permute(0, 2, 3, 1)
    scores_BHTS = scores_BHTS + score_by_distance(position_BTHK, positions_SHK)
    mask_hidden_(scores_BHTS, reach)
    mask_invalid_(scores_BHTS, seen_B)
    weights_BHTS = drop(torch.softmax(scores_BHTS, dim=-1), dropout)
    mixed_BHTK = weights_BHTS.to(values_BSHK.dtype) @ values_BSHK.transpose(1, 2)
    return mixed_BHTK.transpose(1, 2)


def biased_queries(query_BTHK: Tensor, bias: Bias) -> tuple[Tensor, Tensor]:
    """Return queries for content and for position, scaled: T rows instead of T x S scores."""
    scale, dtype = query_BTHK.size(-1) ** -0.5, query_BTHK.dtype
    content_HK, position_HK = (each.to(dtype) for each in bias)
    return (query_BTHK + content_HK) * scale, (query_BTHK + position_HK) * scale


def mask_hidden_(scores_BHTS: Tensor, reach: int | None) -> None:
    """Write minus infinity where a query must not look, in place."""
    segment, keys = scores_BHTS.shape[-2:]
    if segment > 1 or (reach is not None and keys > reach):
        unseen_TS = hidden_keys(segment, keys, reach, scores_BHTS.device)
        scores_BHTS.masked_fill_(unseen_TS, float("-inf"))


def mask_invalid_(scores_BHTS: Tensor, seen_B: Tensor | None) -> None:
    """Write minus infinity at keys from before a lane's first token, in place."""
    if seen_B is not None:
        segment, keys = scores_BHTS.shape[-2:]
        absent_BS = invalid_keys(segment, keys, seen_B)
        scores_BHTS.masked_fill_(absent_BS[:, None, None], float("-inf"))


def score_by_distance(query_BTHK: Tensor, positions_SHK: Tensor) -> Tensor:
    """Return the position score of every query and key; those of the future are garbage."""
    segment, keys = query_BTHK.size(1), positions_SHK.size(0)
    if segment == 1:
        return torch.einsum("bthk,shk->bhts", query_BTHK, positions_SHK)
    # The extra column comes out of the product, because padding the scores would copy them all.
    # Its value does not matter.
    padded_XHK = torch.cat([positions_SHK[:1], positions_SHK])
    scores_BHTX = torch.einsum("bthk,xhk->bhtx", query_BTHK, padded_XHK)
    moved_BHN = scores_BHTX.flatten(-2)[..., segment:]
    return moved_BHN.view(*moved_BHN.shape[:-1], segment, keys)
