"""Memories that decide themselves how long to stay: Expire-Span (arXiv:2105.06548).

Axes: B batch, T segment, M memory, S = M + T keys, D dim, K head width, P learned positions.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparing.nn.kv_buffer import append
from sparing.ops.span_attention import Ramp
from sparing.ops.span_attention.expiring import expiring_attention, expiry


class Aged(NamedTuple):
    """Layer inputs worth keeping, and how many positions before the next one each was read."""

    hidden_BMD: Tensor
    age_BM: Tensor
    """0 marks an empty place."""


class ExpireSpan(nn.Module):
    """The span of a memory from its own vector: e = limit * sigmoid(w . h + b)."""

    def __init__(self, dim: int, limit: int, *, start: float = 0.1) -> None:
        super().__init__()
        self.limit = limit
        self.gauge = nn.Linear(dim, 1)
        nn.init.zeros_(self.gauge.weight)
        nn.init.constant_(self.gauge.bias, math.log(start / (1 - start)))

    def lengths(self, hidden_BSD: Tensor) -> Tensor:
        """Positions each memory is kept for (B, S), before its ramp."""
        return self.limit * torch.sigmoid(self.gauge(hidden_BSD).float()).squeeze(-1)


class ExpireAttention(nn.Module):
    """Multi-head attention over memories shared by all heads, forgotten once they expire."""

    def __init__(  # noqa: PLR0913  all but two are keyword-only
        self,
        dim: int,
        heads: int,
        *,
        span: ExpireSpan,
        ramp: int,
        noisy: bool = False,
        dropout: float = 0.0,
    ) -> None:
        """With noise, spans are cut at a random length for every segment of training."""
        super().__init__()
        self.head_dim, self.dropout, self.ramp = dim // heads, dropout, Ramp(ramp, offset=0)
        self.span, self.noisy = span, noisy
        self.query, self.key, self.value, self.out = (
            nn.Linear(dim, dim, bias=False) for _ in range(4)
        )

    def forward(
        self, hidden_BTD: Tensor, past: Aged, position_KP: Tensor
    ) -> tuple[Tensor, Aged, Tensor]:
        """The attended stream, what is worth carrying on, and the price of the spans."""
        segment = hidden_BTD.size(1)
        source_BSD = append(past.hidden_BMD, hidden_BTD)
        # Steps from each key to the first query; keys of the segment itself count down from 0.
        own_T = -torch.arange(segment, device=hidden_BTD.device)
        ahead_BS = torch.cat([past.age_BM, own_T.expand(hidden_BTD.size(0), -1)], dim=1)
        distance_BTS = ahead_BS[:, None] - own_T[:, None]
        gone_BS = F.pad(past.age_BM == 0, (0, segment))
        distance_BTS = distance_BTS.masked_fill(gone_BS[:, None], 0)
        lengths_BS = self.span.lengths(source_BSD)
        seen_BS = self._shortened(lengths_BS)
        bias_BTS, price = expiry(seen_BS, distance_BTS, self.span.limit, self.ramp)
        mixed_BHTK = expiring_attention(
            self._split(self.query(hidden_BTD)),
            self._split(self.key(source_BSD)),
            self._split(self.value(source_BSD)),
            position_KP,
            bias_BTS,
            distance_BTS,
            dropout=self.dropout if self.training else 0.0,
        )
        age_BS = (ahead_BS + segment).masked_fill(gone_BS, 0)
        out_BTD: Tensor = self.out(mixed_BHTK.transpose(1, 2).flatten(2))
        return out_BTD, self._surviving(source_BSD, age_BS, lengths_BS), price

    def _shortened(self, lengths_BS: Tensor) -> Tensor:
        if not (self.noisy and self.training):
            return lengths_BS
        return lengths_BS.minimum(self.span.limit * torch.rand((), device=lengths_BS.device))

    @torch.no_grad()
    def _surviving(self, source_BSD: Tensor, age_BS: Tensor, lengths_BS: Tensor) -> Aged:
        """Memories the next token may still see, oldest first, in as few places as they fill."""
        left_BS = self.ramp.length + lengths_BS - age_BS
        alive_BS = (age_BS > 0) & (age_BS <= self.span.limit) & (left_BS > 0)
        places = int(alive_BS.sum(1).max())
        # Stable, so that the living keep their order at the end of the row.
        order_BM = alive_BS.int().sort(dim=1, stable=True).indices[:, age_BS.size(1) - places :]
        kept_BM = alive_BS.gather(1, order_BM)
        age_BM = torch.where(kept_BM, age_BS.gather(1, order_BM), 0)
        index_BMD = order_BM[..., None].expand(-1, -1, source_BSD.size(-1))
        return Aged(source_BSD.gather(1, index_BMD) * kept_BM[..., None], age_BM)

    def _split(self, x_BSD: Tensor) -> Tensor:
        return x_BSD.view(*x_BSD.shape[:2], -1, self.head_dim).transpose(1, 2)
