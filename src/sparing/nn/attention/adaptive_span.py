"""Adaptive Span attention (arXiv:1905.07799), whose heads learn their spans, and its layer.

Axes: B batch, H heads, T segment, M memory, S = M + T keys, D dim, K head width, L limit.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparing.nn.attention.expire import ExpireAttention, ExpiringMemory
from sparing.nn.attention.memory import extend_memory, holds_hidden, trim_memory
from sparing.nn.attention.span import (
    AdaptiveSpan,
    DynamicSpan,
    cache_length,
    group_heads_by_window,
)
from sparing.nn.linear import split_heads
from sparing.nn.precision import compute_dtype
from sparing.nn.ring import (
    before_first,
    empty_head_rings,
    head_rings,
    is_static,
    ring_distances,
    ring_length,
    write_head_rings,
)
from sparing.nn.state import State
from sparing.ops.span_attention import PersistentVectors, Ramp, span_attention
from sparing.ops.span_attention.ring import ring_span_attention

Source = Tensor | tuple[Tensor, Tensor]
"""What is attended to, memory first: hidden states (B, S, D) to project, or keys and values."""


class PersistentMemory(nn.Module):
    """Learned keys and values per head that replace the feed-forward layer (arXiv:1907.01470).

    They are stored small and scaled up when used, so that a clipped step moves them further.
    """

    def __init__(self, heads: int, head_dim: int, size: int) -> None:
        super().__init__()
        self.keys = nn.Parameter(torch.randn(heads, head_dim, size) / math.sqrt(head_dim))
        self.values = nn.Parameter(torch.randn(heads, size, head_dim) / math.sqrt(size))

    def forward(self, heads: Sequence[int] | slice | None = None) -> PersistentVectors:
        """Return the vectors of some heads, or of all."""
        chosen = slice(None) if heads is None else heads
        keys_HKN, values_HNK = self.keys[chosen], self.values[chosen]
        scales = math.sqrt(keys_HKN.size(1)), math.sqrt(values_HNK.size(1))
        return PersistentVectors(keys_HKN * scales[0], values_HNK * scales[1])


class AdaptiveSpanAttention(nn.Module):
    """Query, key, value and output matrices without biases; spans are passed in."""

    def __init__(  # noqa: PLR0913  all but two are keyword-only
        self,
        dim: int,
        heads: int,
        *,
        ramp: Ramp,
        dropout: float = 0.0,
        persistent: int = 0,
        zeros: bool = True,
    ) -> None:
        super().__init__()
        if dim % heads:
            raise ValueError(f"dim {dim} must be a multiple of heads {heads}")
        self.heads, self.head_dim = heads, dim // heads
        self.ramp, self.dropout, self.zeros = ramp, dropout, zeros
        self.query, self.key, self.value, self.out = (
            nn.Linear(dim, dim, bias=False) for _ in range(4)
        )
        self.persistent = PersistentMemory(heads, dim // heads, persistent) if persistent else None

    def forward(  # noqa: PLR0913  the last is seldom given
        self,
        hidden_BTD: Tensor,
        source: Source,
        position_KL: Tensor,
        span: Tensor,
        reaches: Sequence[int],
        seen_B: Tensor | None = None,
    ) -> Tensor:
        """Attend from `hidden`, whose own positions are the last T of `source`.

        `reaches` is how far each head looks, known before any product is computed.
        """
        query_BHTK = split_heads(self.query(hidden_BTD), self.head_dim)
        groups = group_heads_by_window(reaches, position_KL.size(1))
        mixed = []
        for width, heads in groups:
            chosen = None if len(groups) == 1 else heads
            keys_BHSK, values_BHSK = self.project(source, hidden_BTD.size(1) + width, chosen)
            mixed_BHTK = span_attention(
                query_BHTK if chosen is None else query_BHTK[:, chosen],
                keys_BHSK,
                values_BHSK,
                position_KL[:, -width:],
                _select_heads(span, chosen),
                ramp=self.ramp,
                zeros=self.zeros,
                seen_B=seen_B,
                persistent=None if self.persistent is None else self.persistent(chosen),
                dropout=self.dropout if self.training else 0.0,
            )
            mixed.append(mixed_BHTK)
        merged_BTD = _restore_order(mixed, groups).transpose(1, 2).flatten(2)
        out_BTD: Tensor = self.out(merged_BTD)
        return out_BTD

    def read_rings(
        self, hidden_BTD: Tensor, state: State, position_KL: Tensor, span: Tensor
    ) -> tuple[Tensor, State]:
        """As `forward`, with memories of fixed size; return the next state as well."""
        seen_B, segment, mixed = state["seen"], hidden_BTD.size(1), []
        shape = (*hidden_BTD.shape[:2], self.heads, self.head_dim)
        keys_BTHK, values_BTHK = (each(hidden_BTD).view(shape) for each in (self.key, self.value))
        rings = write_head_rings(state, keys_BTHK, values_BTHK)
        query_BHTK = split_heads(self.query(hidden_BTD), self.head_dim)
        for heads, keys_BHRK, values_BHRK in head_rings(rings):
            slots = keys_BHRK.size(2)
            distance_BTR = ring_distances(seen_B, segment, slots)
            if not self.zeros:
                gone_BTR = before_first(distance_BTR, seen_B)
                if self.persistent is None:
                    # The first query keeps one slot, a zero vector.
                    gone_BTR = gone_BTR & (distance_BTR != 1)
                distance_BTR = distance_BTR.masked_fill(gone_BTR, -1)
            mixed_BHTK = ring_span_attention(
                query_BHTK[:, heads],
                keys_BHRK,
                values_BHRK,
                position_KL[:, -slots:],
                span[heads] if span.ndim == 1 else span[:, heads],
                distance_BTR,
                ramp=self.ramp,
                persistent=None if self.persistent is None else self.persistent(heads),
            )
            mixed.append(mixed_BHTK)
        out_BTD: Tensor = self.out(torch.cat(mixed, dim=1).transpose(1, 2).flatten(2))
        return out_BTD, rings | {"seen": seen_B + segment}

    def project(
        self, source: Source, length: int, heads: Sequence[int] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return keys and values (B, H, S, K) of the last `length` positions, for some heads."""
        if not isinstance(source, Tensor):
            keys_BHSK, values_BHSK = (
                split_heads(entries[:, -length:], self.head_dim) for entries in source
            )
            if heads is None:
                return keys_BHSK, values_BHSK
            return keys_BHSK[:, heads], values_BHSK[:, heads]
        newest_BSD = source[:, -length:]
        keys_BHSK, values_BHSK = (
            split_heads(F.linear(newest_BSD, self._rows(layer.weight, heads)), self.head_dim)
            for layer in (self.key, self.value)
        )
        return keys_BHSK, values_BHSK

    def _rows(self, weight_DD: Tensor, heads: Sequence[int] | None) -> Tensor:
        if heads is None:
            return weight_DD
        return weight_DD.view(self.heads, self.head_dim, -1)[heads].flatten(0, 1)


def _select_heads(span: Tensor, heads: Sequence[int] | None) -> Tensor:
    if heads is None:
        return span
    return span[heads] if span.ndim == 1 else span[:, heads]


def _restore_order(mixed: list[Tensor], groups: list[tuple[int, list[int]]]) -> Tensor:
    """Concatenate the groups' heads in their original order."""
    if len(mixed) == 1:
        return mixed[0]
    order = [head for _, heads in groups for head in heads]
    back = sorted(range(len(order)), key=order.__getitem__)
    return torch.cat(mixed, dim=1)[:, back]


class AdaptiveSpanLayer(nn.Module):
    """Attention and feed-forward, each followed by a norm of the sum (post-norm)."""

    def __init__(
        self,
        dim: int,
        limit: int,
        *,
        span: AdaptiveSpan | DynamicSpan | None,
        attention: AdaptiveSpanAttention | ExpireAttention,
        feed: nn.Module | None,
    ) -> None:
        """`limit` is the longest span; `span` is None for memories that expire.

        `feed` is None where attention has persistent vectors in its place.
        """
        super().__init__()
        self.limit, self.span, self.attention = limit, span, attention
        self.norm_attention = nn.LayerNorm(dim)
        self.feed = feed
        self.norm_feed = None if feed is None else nn.LayerNorm(dim)

    def forward(
        self, hidden_BTD: Tensor, state: State, position_KL: Tensor, known: Sequence[float] | None
    ) -> tuple[Tensor, State, Tensor]:
        """Return the stream after the layer, its next state, and the mean span to penalise.

        `known` are the spans on the host, where they do not depend on the text.
        """
        mixed_BTD, state, cost = self._attend(hidden_BTD, state, position_KL, known)
        hidden_BTD = self.norm_attention(hidden_BTD + mixed_BTD)
        if self.feed is not None and self.norm_feed is not None:
            hidden_BTD = self.norm_feed(hidden_BTD + self.feed(hidden_BTD))
        return hidden_BTD, state, cost

    def lengths(self, hidden_BTD: Tensor) -> Tensor:
        """Return spans of the heads (H,) or, if they depend on the text, of queries (B, H, T)."""
        if isinstance(self.span, DynamicSpan):
            return self.span.lengths(hidden_BTD)
        assert self.span is not None
        return self.span.lengths()

    def cache(self, known: Sequence[float] | None) -> int:
        """Return how many positions to carry: the longest window and some reserve for growth."""
        if known is None:
            return self.limit
        return cache_length(max(known), self.limit, self.attention.ramp.length)

    def static_state(
        self, batch: int, like: Tensor, known: Sequence[float] | None, chunk: int
    ) -> State:
        """Return rings as long as each head's window, or for memories that expire, the limit."""
        if isinstance(self.attention, ExpireAttention):
            return self.attention.static_state(batch, like, chunk)
        ramp, heads = self.attention.ramp, self.attention.heads
        spans = [float(self.limit)] * heads if known is None else known
        slots = [ring_length(min(self.limit, ramp.reach(span)), chunk) for span in spans]
        return empty_head_rings(slots, self.attention.head_dim, batch, like)

    def _attend(
        self, hidden_BTD: Tensor, state: State, position_KL: Tensor, known: Sequence[float] | None
    ) -> tuple[Tensor, State, Tensor]:
        if is_static(state):
            if isinstance(self.attention, ExpireAttention):
                mixed_BTD, after = self.attention.read_rings(hidden_BTD, state, position_KL)
            else:
                span = self.lengths(hidden_BTD)
                mixed_BTD, after = self.attention.read_rings(hidden_BTD, state, position_KL, span)
            return mixed_BTD, after, hidden_BTD.new_zeros(())
        if isinstance(self.attention, ExpireAttention):
            past = ExpiringMemory(state["memory"], state["age"])
            mixed_BTD, kept, cost = self.attention(hidden_BTD, past, position_KL)
            return mixed_BTD, {"memory": kept.hidden_BMD, "age": kept.age_BM}, cost
        stored = extend_memory(state, _entries(self.attention, hidden_BTD, state))
        source = stored["memory"] if holds_hidden(stored) else (stored["keys"], stored["values"])
        lengths = self.lengths(hidden_BTD)
        spans = known if known is not None else _longest(lengths)
        reaches = [self.attention.ramp.reach(span) for span in spans]
        mixed_BTD = self.attention(
            hidden_BTD, source, position_KL, lengths, reaches, state.get("seen")
        )
        carried = trim_memory(stored, self.cache(known), state, hidden_BTD.size(1))
        return mixed_BTD, carried, lengths.mean()


def _entries(attention: AdaptiveSpanAttention, hidden_BTD: Tensor, state: State) -> State:
    """Return what a segment adds to a memory of the same kind as in `state`."""
    if holds_hidden(state):
        # Used in the key and value products only, so their precision is enough.
        return {"memory": hidden_BTD.to(compute_dtype(hidden_BTD))}
    return {"keys": attention.key(hidden_BTD), "values": attention.value(hidden_BTD)}


def _longest(lengths_BHT: Tensor) -> list[float]:
    """Return the longest span of each head in this segment, on the host."""
    longest: list[float] = lengths_BHT.detach().amax(dim=(0, 2)).tolist()
    return longest
