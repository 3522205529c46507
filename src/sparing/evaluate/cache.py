"""Continuous cache (arXiv:1612.04426): words that followed similar moments become more likely.

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
from sparing.evaluate.loss import Evaluation, carried
from sparing.models.api import Head, LanguageModel
from sparing.units import IGNORE_INDEX


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheConfig:
    """The three numbers of a cache; the defaults are AWD-LSTM's for WikiText-2."""

    window: int = 3785
    """Positions remembered."""
    theta: float = 0.662
    """How sharply similarity tells; 0: every remembered word counts alike."""
    share: float = 0.1279
    """Probability given to the cache, lambda in the papers; 0: none."""

    def __post_init__(self) -> None:
        if self.window < 1:
            raise UserError(f"the cache must hold at least 1 position, not {self.window}")
        if not 0 <= self.share < 1:
            raise UserError(f"the cache's lambda must be at least 0 and below 1, not {self.share}")
        if not 0 <= self.theta < float("inf"):
            raise UserError(f"the cache's theta must be at least 0, not {self.theta}")


class Cache:
    """Remembers hidden vectors and the targets that followed; each lane has its own.

    p(w) = (1 - share) p_model(w) + share sum_j [w_j = w] softmax_j(theta h_t . h_j), over the
    `window` positions before t. While nothing is remembered, p is the model's.
    """

    def __init__(self, head: Head, config: CacheConfig) -> None:
        self.head, self.config = head, config
        self._hidden_BWD: Tensor | None = None
        self._targets_BW: Tensor | None = None

    def charge(self, hidden_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        """Nats of each target; afterwards the segment itself is remembered."""
        c, plain_BT = self.config, self.head.nats(hidden_BTD, targets_BT)
        hidden_BTD = hidden_BTD.to(torch.promote_types(hidden_BTD.dtype, torch.float32))
        hidden_BSD, targets_BS = self._remember(hidden_BTD, targets_BT)
        share_BT, known_T = self._share(hidden_BTD, targets_BT, hidden_BSD, targets_BS)
        # In logarithms: a target that the model finds impossible must not become an infinity.
        mixed_BT = torch.logaddexp(math.log1p(-c.share) - plain_BT, torch.log(c.share * share_BT))
        nats_BT = torch.where(known_T, -mixed_BT, plain_BT)
        self._hidden_BWD, self._targets_BW = hidden_BSD[:, -c.window :], targets_BS[:, -c.window :]
        return nats_BT.masked_fill(targets_BT == IGNORE_INDEX, 0.0)

    def _remember(self, hidden_BTD: Tensor, targets_BT: Tensor) -> tuple[Tensor, Tensor]:
        if self._hidden_BWD is None or self._targets_BW is None:
            return hidden_BTD, targets_BT
        hidden_BSD = torch.cat([self._hidden_BWD, hidden_BTD], dim=1)
        return hidden_BSD, torch.cat([self._targets_BW, targets_BT], dim=1)

    def _share(
        self, hidden_BTD: Tensor, targets_BT: Tensor, hidden_BSD: Tensor, targets_BS: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The cache's probability of each target, and at which positions there is a cache."""
        segment, keys = hidden_BTD.size(1), hidden_BSD.size(1)
        with torch.autocast(hidden_BTD.device.type, enabled=False):
            scores_BTS = self.config.theta * hidden_BTD @ hidden_BSD.transpose(1, 2)
        own_T1 = torch.arange(keys - segment, keys, device=hidden_BTD.device)[:, None]
        at_S = torch.arange(keys, device=hidden_BTD.device)
        seen_TS = (at_S < own_T1) & (at_S >= own_T1 - self.config.window)
        weights_BTS = scores_BTS.masked_fill_(~seen_TS, -torch.inf).softmax(-1)
        same_BTS = targets_BT[:, :, None] == targets_BS[:, None, :]
        # Where nothing is seen the softmax is 0 / 0; the caller does not look there.
        return weights_BTS.mul_(same_BTS).sum(-1), seen_TS.any(-1)


def cached(
    model: LanguageModel, split: Split, hardware: Hardware, cache: CacheConfig, **reading: Any
) -> Evaluation:
    """`carried`, with a cache beside the model; `reading` is passed on to it."""
    charge = Cache(model.head, cache).charge
    found = carried(model, split, hardware, charge=charge, **reading)
    how = f"cache {cache.window}, theta {cache.theta:g}, lambda {cache.share:g}"
    return replace(found, how=f"{found.how}, {how}")
