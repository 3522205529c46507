"""Attention to keys in any order, told apart by their distance: for memories of fixed size.

Axes: B batch, T segment, R slots, H heads, K head width.
"""

import math

from torch import Tensor

from sparing.ops.window_attention.reference import masked_softmax


def ring_window_attention(  # noqa: PLR0913  a public op
    query_BTHK: Tensor,
    keys_BHRK: Tensor,
    values_BHRK: Tensor,
    distance_BTR: Tensor,
    span_H: Tensor,
    ramp: int,
) -> Tensor:
    """As `window_attention`, without gradients; keys at negative distances are not seen."""
    query_BHTK = query_BTHK.transpose(1, 2).to(keys_BHRK.dtype) / math.sqrt(query_BTHK.size(-1))
    distance_B1TR = distance_BTR[:, None]
    inside_BHTR = ((ramp + span_H[:, None, None] - distance_B1TR) / ramp).clamp(0, 1)
    mask_BHTR = inside_BHTR * (distance_B1TR >= 0)
    weights_BHTR = masked_softmax(query_BHTK @ keys_BHRK.mT, mask_BHTR)
    return (weights_BHTR.to(values_BHRK.dtype) @ values_BHRK).transpose(1, 2)
