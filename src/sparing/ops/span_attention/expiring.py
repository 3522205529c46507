"""Attention over memories that expire one by one (arXiv:2105.06548), keys in any order of age.

Axes: B batch, H heads, T segment, S keys, K head width, P distances with a position of their own.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from sparing.ops.dropout import dropout as drop
from sparing.ops.span_attention.reference import Ramp, log_mask


def expiring_attention(  # noqa: PLR0913  a public op
    query_BHTK: Tensor,
    keys_BHSK: Tensor,
    values_BHSK: Tensor,
    position_KP: Tensor,
    bias_BTS: Tensor,
    distance_BTS: Tensor,
    *,
    dropout: float = 0.0,
) -> Tensor:
    """softmax over keys of (q . (k + p_x) / sqrt(K) + bias), times values.

    Distances x beyond P have no position. A query that sees no key at all gets zeros.
    """
    query_BHTK = query_BHTK * query_BHTK.size(-1) ** -0.5
    placed_BHTP = F.pad(query_BHTK @ position_KP.to(query_BHTK.dtype), (1, 0))
    width = position_KP.size(1)
    # Column 0 is the zero of those without a position; the last belongs to distance 1.
    near_BTS = (distance_BTS >= 1) & (distance_BTS <= width)
    column_BTS = torch.where(near_BTS, width + 1 - distance_BTS, 0)
    column_BHTS = column_BTS[:, None].expand(-1, query_BHTK.size(1), -1, -1)
    scores_BHTS = query_BHTK @ keys_BHSK.mT + placed_BHTP.gather(-1, column_BHTS)
    blind_B1T1 = (bias_BTS == -torch.inf).all(-1)[:, None, :, None]
    scores_BHTS = (scores_BHTS + bias_BTS[:, None]).masked_fill(blind_B1T1, 0)
    weights_BHTS = torch.softmax(scores_BHTS, dim=-1).masked_fill(blind_B1T1, 0)
    return drop(weights_BHTS, dropout).to(values_BHSK.dtype) @ values_BHSK


def expiry(span_BS: Tensor, distance_BTS: Tensor, limit: int, ramp: Ramp) -> tuple[Tensor, Tensor]:
    """Return the bias of keys by their spans, and the penalty on those that are about to expire.

    The penalty is the mean over queries and batch of what is left of all spans on the ramp, in
    ramps.
    """
    visible_BTS = (distance_BTS >= 1) & (distance_BTS <= limit)
    far_BTS = distance_BTS.to(span_BS.dtype).masked_fill(~visible_BTS, torch.inf)
    bias_BTS = log_mask(span_BS[:, None], far_BTS, ramp)
    left_BTS = span_BS[:, None] - distance_BTS
    fading_BTS = visible_BTS & (left_BTS < 0) & (left_BTS > -ramp.length)
    penalty = (left_BTS * fading_BTS).sum((1, 2)).mean() / (ramp.length * distance_BTS.size(1))
    return bias_BTS, penalty
