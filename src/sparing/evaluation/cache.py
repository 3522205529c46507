"""Continuous cache (arXiv:1612.04426): raises the probability of tokens that followed similar
hidden vectors in the recent past.

Axes: B lanes, T segment, W window, S = W + T remembered positions, D width of the hidden vectors.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sparing.data.tokens import Split
from sparing.device import Hardware
from sparing.errors import UserError
from sparing.evaluation.loss import Evaluation, evaluate_streams
from sparing.models.api import Head, LanguageModel
from sparing.units import IGNORE_INDEX


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheConfig:
    """Settings of a cache; the defaults are AWD-LSTM's for WikiText-2."""

    window: int = 3785
    """Positions remembered."""
    theta: float = 0.662
    """Factor of the similarity in the softmax; 0 weights all remembered tokens equally."""
    share: float = 0.1279
    """Weight of the cache in the mixture, lambda in the paper; 0 is the model alone."""

    def __post_init__(self) -> None:
        if self.window < 1:
            raise UserError(f"the cache must hold at least 1 position, not {self.window}")
        if not 0 <= self.share < 1:
            raise UserError(f"the cache's lambda must be at least 0 and below 1, not {self.share}")
        if not 0 <= self.theta < float("inf"):
            raise UserError(f"the cache's theta must be at least 0, not {self.theta}")


class Cache:
    """Hidden vectors of the last positions and the targets that followed, per lane.

    p(w) = (1 - share) p_model(w) + share sum_j [w_j = w] softmax_j(theta h_t . h_j), over the
    `window` positions before t. While the cache is empty, p is the model's.
    """

    def __init__(self, head: Head, config: CacheConfig) -> None:
        self.head, self.config = head, config
        self._hidden_BWD: Tensor | None = None
        self._targets_BW: Tensor | None = None

    def nats(self, hidden_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        """Return the nats of each target, then add the segment to the cache."""
        c, plain_BT = self.config, self.head.nats(hidden_BTD, targets_BT)
        hidden_BTD = hidden_BTD.to(torch.promote_types(hidden_BTD.dtype, torch.float32))
        hidden_BSD, targets_BS = self._append(hidden_BTD, targets_BT)
        cached_BT, seen_T = self._cache_probability(hidden_BTD, targets_BT, hidden_BSD, targets_BS)
        # In logarithms, so that a target of zero model probability does not become infinite.
        mixed_BT = torch.logaddexp(math.log1p(-c.share) - plain_BT, torch.log(c.share * cached_BT))
        nats_BT = torch.where(seen_T, -mixed_BT, plain_BT)
        self._hidden_BWD, self._targets_BW = hidden_BSD[:, -c.window :], targets_BS[:, -c.window :]
        return nats_BT.masked_fill(targets_BT == IGNORE_INDEX, 0.0)

    def _append(self, hidden_BTD: Tensor, targets_BT: Tensor) -> tuple[Tensor, Tensor]:
        if self._hidden_BWD is None or self._targets_BW is None:
            return hidden_BTD, targets_BT
        hidden_BSD = torch.cat([self._hidden_BWD, hidden_BTD], dim=1)
        return hidden_BSD, torch.cat([self._targets_BW, targets_BT], dim=1)

    def _cache_probability(
        self, hidden_BTD: Tensor, targets_BT: Tensor, hidden_BSD: Tensor, targets_BS: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the cache's probability of each target, and where the cache is not empty."""
        segment, keys = hidden_BTD.size(1), hidden_BSD.size(1)
        with torch.autocast(hidden_BTD.device.type, enabled=False):
            scores_BTS = self.config.theta * hidden_BTD @ hidden_BSD.transpose(1, 2)
        own_T1 = torch.arange(keys - segment, keys, device=hidden_BTD.device)[:, None]
        at_S = torch.arange(keys, device=hidden_BTD.device)
        seen_TS = (at_S < own_T1) & (at_S >= own_T1 - self.config.window)
        weights_BTS = scores_BTS.masked_fill_(~seen_TS, -torch.inf).softmax(-1)
        same_BTS = targets_BT[:, :, None] == targets_BS[:, None, :]
        # Where nothing is seen the softmax is 0 / 0; the caller ignores these positions.
        return weights_BTS.mul_(same_BTS).sum(-1), seen_TS.any(-1)


def evaluate_with_cache(
    model: LanguageModel, split: Split, hardware: Hardware, cache: CacheConfig, **options: Any
) -> Evaluation:
    """Call `evaluate_streams` with a cache added to the model; `options` are passed on to it."""
    if not model.shows_hidden:
        raise UserError("a cache compares hidden vectors, which an ONNX export does not show")
    loss_fn = Cache(model.head, cache).nats
    found = evaluate_streams(model, split, hardware, loss_fn=loss_fn, **options)
    how = f"cache {cache.window}, theta {cache.theta:g}, lambda {cache.share:g}"
    return replace(found, how=f"{found.how}, {how}")
