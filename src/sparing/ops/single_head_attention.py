"""Causal attention of one wide head over memory and the current segment.

Axes: B batch, T segment, S = memory + T keys, D width. SDPA's fused kernels do not support head
widths above 256, so two matrix products around a softmax are also the fast form on today's GPUs.
"""

import torch
from torch import Tensor

from sparing.ops.dropout import dropout as drop


def single_head_attention(  # noqa: PLR0913  three are keyword-only
    query_BTD: Tensor,
    keys_BSD: Tensor,
    values_BSD: Tensor,
    *,
    seen_B: Tensor | None = None,
    unseen_BTS: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Query t sees the S - T memory slots and positions up to t of its own segment.

    With `seen`, only that many newest slots of a lane's memory are valid. For keys in any other
    order, `unseen` marks the keys that each query does not see. Scores are scaled by 1/sqrt(D).
    `dropout` acts on the attention weights.
    """
    weights_BTS = drop(attention_weights(query_BTD, keys_BSD, seen_B, unseen_BTS), dropout)
    return torch.bmm(weights_BTS.to(values_BSD.dtype), values_BSD)


def attention_weights(
    query_BTD: Tensor,
    keys_BSD: Tensor,
    seen_B: Tensor | None = None,
    unseen_BTS: Tensor | None = None,
) -> Tensor:
    """Return the weights (B, T, S) of `single_head_attention`, before dropout."""
    scores_BTS = torch.bmm(query_BTD * query_BTD.size(-1) ** -0.5, keys_BSD.mT)
    if unseen_BTS is not None:
        scores_BTS = scores_BTS.masked_fill(unseen_BTS, float("-inf"))
    elif query_BTD.size(1) > 1:
        scores_BTS = scores_BTS.masked_fill(_future(scores_BTS), float("-inf"))
    if seen_B is not None:
        scores_BTS = scores_BTS.masked_fill(_absent(scores_BTS, seen_B), float("-inf"))
    return torch.softmax(scores_BTS, dim=-1)


def _absent(scores_BTS: Tensor, seen_B: Tensor) -> Tensor:
    """Return the slots (B, 1, S) from before a lane's first token."""
    _, segment, keys = scores_BTS.shape
    first_B11 = (keys - segment - seen_B)[:, None, None]
    return torch.arange(keys, device=scores_BTS.device) < first_B11


def _future(scores_BTS: Tensor) -> Tensor:
    _, segment, keys = scores_BTS.shape
    query_T1 = torch.arange(segment, device=scores_BTS.device)[:, None] + (keys - segment)
    return torch.arange(keys, device=scores_BTS.device)[None, :] > query_T1
