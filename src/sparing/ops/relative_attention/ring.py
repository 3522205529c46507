"""Attention to keys in any order, told apart by their distance: for memories of fixed size.

Axes: B batch, T segment, R slots, H heads, K head width; row d of `codes` is of distance d.
"""

import torch
from torch import Tensor

from sparing.ops.relative_attention.reference import Bias
from sparing.ops.relative_attention.shifted import biased_queries


def ring_relative_attention(  # noqa: PLR0913  a public op
    query_BTHK: Tensor,
    keys_BHRK: Tensor,
    values_BHRK: Tensor,
    codes_RHK: Tensor,
    bias: Bias,
    distance_BTR: Tensor,
) -> Tensor:
    """As `relative_attention`, without gradients; keys at negative distances are not seen."""
    content_BTHK, position_BTHK = biased_queries(query_BTHK, bias)
    by_distance_BHTR = position_BTHK.transpose(1, 2) @ codes_RHK.permute(1, 2, 0)
    row_BHTR = distance_BTR.clamp(min=0)[:, None].expand_as(by_distance_BHTR)
    scores_BHTR = content_BTHK.transpose(1, 2) @ keys_BHRK.mT + by_distance_BHTR.gather(
        -1, row_BHTR
    )
    scores_BHTR = scores_BHTR.masked_fill((distance_BTR < 0)[:, None], float("-inf"))
    weights_BHTR = torch.softmax(scores_BHTR, dim=-1)
    return (weights_BHTR.to(values_BHRK.dtype) @ values_BHRK).transpose(1, 2)
