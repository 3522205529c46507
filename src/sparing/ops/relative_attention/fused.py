"""The form for inference: SDPA does content scores, softmax and sum; its mask is by distance.

Without gradients only: kernels for training do not all pass a gradient to the mask. On one core of
an EPYC, float32, 4 lanes, 512 queries and 1024 keys take 203 ms instead of 536.
"""

import torch.nn.functional as F
from torch import Tensor

from sparing.ops.relative_attention.reference import Bias
from sparing.ops.relative_attention.shifted import (
    biased_queries,
    mask_hidden_,
    mask_invalid_,
    score_by_distance,
)


def relative_attention(
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
    mask_BHTS = score_by_distance(position_BTHK, positions_SHK)
    if mask_BHTS.device.type != "cpu":
        # The shifted view has any offset; kernels on GPUs need an aligned mask.
        mask_BHTS = mask_BHTS.contiguous()
    if reach is None:
        # Without a reach all of memory is visible.
        mask_hidden_(mask_BHTS[..., keys_BSHK.size(1) - query_BTHK.size(1) :], reach)
    else:
        mask_hidden_(mask_BHTS, reach)
    mask_invalid_(mask_BHTS, seen_B)
    mixed_BHTK = F.scaled_dot_product_attention(
        content_BTHK.transpose(1, 2),
        keys_BSHK.transpose(1, 2),
        values_BSHK.transpose(1, 2),
        attn_mask=mask_BHTS,
        dropout_p=dropout,
        scale=1.0,
    )
    return mixed_BHTK.transpose(1, 2)
