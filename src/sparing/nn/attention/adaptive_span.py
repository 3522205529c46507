"""Adaptive Span attention (arXiv:1905.07799) and its layer: heads see as far as they learned to.

Axes: B batch, H heads, T segment, M memory, S = M + T keys, D dim, K head width, L limit.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparing.nn.attention.expire import Aged, ExpireAttention
from sparing.nn.attention.span import AdaptiveSpan, DynamicSpan, cache_length, grouped
from sparing.nn.kv_buffer import append
from sparing.nn.precision import compute_dtype
from sparing.nn.state import State, counted
from sparing.ops.span_attention import Persistent, Ramp, span_attention

Source = Tensor | tuple[Tensor, Tensor]
"""What is attended to, memory first: layer inputs (B, S, D) to project, or keys and values."""


class PersistentMemory(nn.Module):
    """Keys and values of a head's own that stand for the feed-forward layer (arXiv:1907.01470).

    They are stored small and used large, so that a clipped step moves them further.
    """

    def __init__(self, heads: int, head_dim: int, size: int) -> None:
        super().__init__()
        self.keys = nn.Parameter(torch.randn(heads, head_dim, size) / math.sqrt(head_dim))
        self.values = nn.Parameter(torch.randn(heads, size, head_dim) / math.sqrt(size))

    def forward(self, heads: Sequence[int] | None = None) -> Persistent:
        """The vectors of some heads, or of all."""
        chosen = slice(None) if heads is None else list(heads)
        keys_HKN, values_HNK = self.keys[chosen], self.values[chosen]
        scales = math.sqrt(keys_HKN.size(1)), math.sqrt(values_HNK.size(1))
        return Persistent(keys_HKN * scales[0], values_HNK * scales[1])


class AdaptiveSpanAttention(nn.Module):
    """Query, key, value and output matrices without biases, and spans given from outside."""

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

        `reaches` says how far each head looks, before any product is made.
        """
        query_BHTK = self._split(self.query(hidden_BTD))
        groups = grouped(reaches, position_KL.size(1))
        mixed = []
        for width, heads in groups:
            chosen = None if len(groups) == 1 else heads
            keys_BHSK, values_BHSK = self.project(source, hidden_BTD.size(1) + width, chosen)
            mixed_BHTK = span_attention(
                query_BHTK if chosen is None else query_BHTK[:, chosen],
                keys_BHSK,
                values_BHSK,
                position_KL[:, -width:],
                _of_heads(span, chosen),
                ramp=self.ramp,
                zeros=self.zeros,
                seen_B=seen_B,
                persistent=None if self.persistent is None else self.persistent(chosen),
                dropout=self.dropout if self.training else 0.0,
            )
            mixed.append(mixed_BHTK)
        merged_BTD = _in_order(mixed, groups).transpose(1, 2).flatten(2)
        out_BTD: Tensor = self.out(merged_BTD)
        return out_BTD

    def project(
        self, source: Source, length: int, heads: Sequence[int] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Keys and values (B, H, S, K) of the last `length` positions, for some heads or all."""
        if not isinstance(source, Tensor):
            keys_BHSK, values_BHSK = (self._split(part[:, -length:]) for part in source)
            if heads is None:
                return keys_BHSK, values_BHSK
            return keys_BHSK[:, heads], values_BHSK[:, heads]
        recent_BSD = source[:, -length:]
        keys_BHSK, values_BHSK = (
            self._split(F.linear(recent_BSD, self._rows(layer.weight, heads)))
            for layer in (self.key, self.value)
        )
        return keys_BHSK, values_BHSK

    def _rows(self, weight_DD: Tensor, heads: Sequence[int] | None) -> Tensor:
        if heads is None:
            return weight_DD
        return weight_DD.view(self.heads, self.head_dim, -1)[heads].flatten(0, 1)

    def _split(self, x_BSD: Tensor) -> Tensor:
        return x_BSD.view(*x_BSD.shape[:2], -1, self.head_dim).transpose(1, 2)


def _of_heads(span: Tensor, heads: Sequence[int] | None) -> Tensor:
    if heads is None:
        return span
    return span[heads] if span.ndim == 1 else span[:, heads]


def _in_order(mixed: list[Tensor], groups: list[tuple[int, list[int]]]) -> Tensor:
    """Heads side by side again, in their own order."""
    if len(mixed) == 1:
        return mixed[0]
    order = [head for _, heads in groups for head in heads]
    back = sorted(range(len(order)), key=order.__getitem__)
    return torch.cat(mixed, dim=1)[:, back]


class AdaptiveSpanLayer(nn.Module):
    """Attention and feed-forward layer, each followed by a norm of the sum (post-norm)."""

    def __init__(
        self,
        dim: int,
        limit: int,
        *,
        span: AdaptiveSpan | DynamicSpan | None,
        attention: AdaptiveSpanAttention | ExpireAttention,
        feed: nn.Module | None,
    ) -> None:
        """`limit` is the longest span; memories that expire have theirs, so there is no `span`.

        Without `feed` attention has persistent vectors in its place.
        """
        super().__init__()
        self.limit, self.span, self.attention = limit, span, attention
        self.norm_attention = nn.LayerNorm(dim)
        self.feed = feed
        self.norm_feed = None if feed is None else nn.LayerNorm(dim)

    def forward(
        self, hidden_BTD: Tensor, state: State, position_KL: Tensor, known: Sequence[float] | None
    ) -> tuple[Tensor, State, Tensor]:
        """The stream after the layer, its own state, and the mean span it has to pay for.

        `known` are the spans as numbers, where they do not depend on the text.
        """
        mixed_BTD, state, cost = self._attend(hidden_BTD, state, position_KL, known)
        hidden_BTD = self.norm_attention(hidden_BTD + mixed_BTD)
        if self.feed is not None and self.norm_feed is not None:
            hidden_BTD = self.norm_feed(hidden_BTD + self.feed(hidden_BTD))
        return hidden_BTD, state, cost

    def lengths(self, hidden_BTD: Tensor) -> Tensor:
        """Spans of the heads (H,) or, where they depend on the text, of the queries (B, H, T)."""
        if isinstance(self.span, DynamicSpan):
            return self.span.lengths(hidden_BTD)
        assert self.span is not None
        return self.span.lengths()

    def cache(self, known: Sequence[float] | None) -> int:
        """Positions worth carrying: all that the longest span may see, and room for growth."""
        if known is None:
            return self.limit
        return cache_length(max(known), self.limit, self.attention.ramp.length)

    def _attend(
        self, hidden_BTD: Tensor, state: State, position_KL: Tensor, known: Sequence[float] | None
    ) -> tuple[Tensor, State, Tensor]:
        if isinstance(self.attention, ExpireAttention):
            past = Aged(state["memory"], state["age"])
            mixed_BTD, kept, cost = self.attention(hidden_BTD, past, position_KL)
            return mixed_BTD, {"memory": kept.hidden_BMD, "age": kept.age_BM}, cost
        source, carried = _remembered(self.attention, hidden_BTD, state)
        lengths = self.lengths(hidden_BTD)
        spans = known if known is not None else _longest(lengths)
        reaches = [self.attention.ramp.reach(span) for span in spans]
        mixed_BTD = self.attention(
            hidden_BTD, source, position_KL, lengths, reaches, state.get("seen")
        )
        keep = self.cache(known)
        kept = {name: tensor[:, -keep:].detach() for name, tensor in carried.items()}
        return mixed_BTD, kept | counted(state, hidden_BTD.size(1)), lengths.mean()


def _remembered(
    attention: AdaptiveSpanAttention, hidden_BTD: Tensor, state: State
) -> tuple[Source, State]:
    """What there is to attend to, as projected or as it came, and the same to be carried."""
    if "memory" in state:
        # It only ever enters the key and value products, so their precision is enough.
        fresh_BTD = hidden_BTD.to(compute_dtype(hidden_BTD))
        memory_BSD = append(state["memory"], fresh_BTD)
        return memory_BSD, {"memory": memory_BSD}
    fresh = {"keys": attention.key(hidden_BTD), "values": attention.value(hidden_BTD)}
    carried = {name: append(state[name], new_BTD) for name, new_BTD in fresh.items()}
    return (carried["keys"], carried["values"]), carried


def _longest(lengths_BHT: Tensor) -> list[float]:
    """The longest span of each head in this segment, as numbers."""
    longest: list[float] = lengths_BHT.detach().amax(dim=(0, 2)).tolist()
    return longest
