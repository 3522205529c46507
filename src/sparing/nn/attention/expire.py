"""Attention whose memories each have a learned lifetime: Expire-Span (arXiv:2105.06548).

Axes: B batch, T segment, M memory, S = M + T keys, D dim, K head width, P learned positions.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparing.nn.kv_buffer import append
from sparing.nn.linear import split_heads
from sparing.nn.ring import (
    PREFIX,
    before_first,
    empty_head_rings,
    head_rings,
    ring_distances,
    ring_length,
    write_head_rings,
    write_ring,
)
from sparing.nn.state import State
from sparing.ops.span_attention import Ramp
from sparing.ops.span_attention.expiring import expiring_attention, expiry

SPANS = f"{PREFIX}spans"
"""The ring that holds how long each memory is kept."""


class ExpiringMemory(NamedTuple):
    """Hidden states that have not expired, and how many positions before the next token each is."""

    hidden_BMD: Tensor
    age_BM: Tensor
    """0 marks an empty slot."""


class ExpireSpan(nn.Module):
    """The span of a memory, computed from its vector: e = limit * sigmoid(w . h + b)."""

    def __init__(self, dim: int, limit: int, *, start: float = 0.1) -> None:
        super().__init__()
        self.limit = limit
        self.gauge = nn.Linear(dim, 1)
        nn.init.zeros_(self.gauge.weight)
        nn.init.constant_(self.gauge.bias, math.log(start / (1 - start)))

    def lengths(self, hidden_BSD: Tensor) -> Tensor:
        """Return how many positions each memory is kept for (B, S), before its ramp."""
        return self.limit * torch.sigmoid(self.gauge(hidden_BSD).float()).squeeze(-1)


class ExpireAttention(nn.Module):
    """Multi-head attention over memories that all heads share and that are dropped on expiry."""

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
        """If `noisy`, training cuts spans at a length drawn for each segment."""
        super().__init__()
        self.head_dim, self.dropout, self.ramp = dim // heads, dropout, Ramp(ramp, offset=0)
        self.span, self.noisy = span, noisy
        self.query, self.key, self.value, self.out = (
            nn.Linear(dim, dim, bias=False) for _ in range(4)
        )

    def forward(
        self, hidden_BTD: Tensor, past: ExpiringMemory, position_KP: Tensor
    ) -> tuple[Tensor, ExpiringMemory, Tensor]:
        """Return the attention's output, the memory to carry, and the penalty on the spans."""
        segment = hidden_BTD.size(1)
        source_BSD = append(past.hidden_BMD, hidden_BTD)
        # Steps from each key to the first query; those of the segment's own keys are 0, -1, -2 ...
        own_T = -torch.arange(segment, device=hidden_BTD.device)
        ahead_BS = torch.cat([past.age_BM, own_T.expand(hidden_BTD.size(0), -1)], dim=1)
        distance_BTS = ahead_BS[:, None] - own_T[:, None]
        gone_BS = F.pad(past.age_BM == 0, (0, segment))
        distance_BTS = distance_BTS.masked_fill(gone_BS[:, None], 0)
        lengths_BS = self.span.lengths(source_BSD)
        seen_BS = self._add_noise(lengths_BS)
        bias_BTS, penalty = expiry(seen_BS, distance_BTS, self.span.limit, self.ramp)
        mixed_BHTK = expiring_attention(
            split_heads(self.query(hidden_BTD), self.head_dim),
            split_heads(self.key(source_BSD), self.head_dim),
            split_heads(self.value(source_BSD), self.head_dim),
            position_KP,
            bias_BTS,
            distance_BTS,
            dropout=self.dropout if self.training else 0.0,
        )
        age_BS = (ahead_BS + segment).masked_fill(gone_BS, 0)
        out_BTD: Tensor = self.out(mixed_BHTK.transpose(1, 2).flatten(2))
        return out_BTD, self._drop_expired(source_BSD, age_BS, lengths_BS), penalty

    def static_state(self, batch: int, like: Tensor, chunk: int) -> State:
        """Return rings for keys, values and spans that last until the longest span ends."""
        slots, dim = ring_length(self.span.limit, chunk), self.query.in_features
        heads = dim // self.head_dim
        state = empty_head_rings([slots] * heads, self.head_dim, batch, like)
        return state | {SPANS: like.new_zeros(batch, slots, 1)}

    def read_rings(
        self, hidden_BTD: Tensor, state: State, position_KP: Tensor
    ) -> tuple[Tensor, State]:
        """As `forward`, with a memory of fixed size, in which what has expired is only masked."""
        seen_B, segment, limit = state["seen"], hidden_BTD.size(1), self.span.limit
        keys, values = (
            each(hidden_BTD).unflatten(-1, (-1, self.head_dim)) for each in (self.key, self.value)
        )
        rings = write_head_rings(state, keys, values)
        lengths_BT1 = self.span.lengths(hidden_BTD)[..., None]
        rings[SPANS] = write_ring(state[SPANS], lengths_BT1, seen_B)
        ((_, keys_BHRK, values_BHRK),) = head_rings(rings)
        distance_BTR = ring_distances(seen_B, segment, keys_BHRK.size(2))
        distance_BTR = distance_BTR.masked_fill(before_first(distance_BTR, seen_B), 0)
        bias_BTR, _ = expiry(rings[SPANS].squeeze(-1), distance_BTR, limit, self.ramp)
        query_BHTK = split_heads(self.query(hidden_BTD), self.head_dim)
        mixed_BHTK = expiring_attention(
            query_BHTK, keys_BHRK, values_BHRK, position_KP, bias_BTR, distance_BTR
        )
        out_BTD: Tensor = self.out(mixed_BHTK.transpose(1, 2).flatten(2))
        return out_BTD, rings | {"seen": seen_B + segment}

    def _add_noise(self, lengths_BS: Tensor) -> Tensor:
        if not (self.noisy and self.training):
            return lengths_BS
        return lengths_BS.minimum(self.span.limit * torch.rand((), device=lengths_BS.device))

    @torch.no_grad()
    def _drop_expired(
        self, source_BSD: Tensor, age_BS: Tensor, lengths_BS: Tensor
    ) -> ExpiringMemory:
        """Return the memories the next token may still see, oldest first, in few slots."""
        left_BS = self.ramp.length + lengths_BS - age_BS
        alive_BS = (age_BS > 0) & (age_BS <= self.span.limit) & (left_BS > 0)
        slots = int(alive_BS.sum(1).max())
        # Stable, so that live memories keep their order at the end of the row.
        order_BM = alive_BS.int().sort(dim=1, stable=True).indices[:, age_BS.size(1) - slots :]
        kept_BM = alive_BS.gather(1, order_BM)
        age_BM = torch.where(kept_BM, age_BS.gather(1, order_BM), 0)
        index_BMD = order_BM[..., None].expand(-1, -1, source_BSD.size(-1))
        return ExpiringMemory(source_BSD.gather(1, index_BMD) * kept_BM[..., None], age_BM)
