"""A layer of the Adaptive Span Transformer (arXiv:1905.07799), whatever kind of span it has.

Axes: B batch, T segment, M memory, S = M + T keys, D dim, H heads, K head width, L span limit.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from sparing.nn.attention import compute_dtype
from sparing.nn.expire import Aged, ExpireAttention
from sparing.nn.memory import extended
from sparing.nn.span import AdaptiveSpan, DynamicSpan, cache_length
from sparing.nn.span_attention import Source, SpanAttention
from sparing.nn.state import State, counted


class SpanLayer(nn.Module):
    """Attention and feed-forward layer, each followed by a norm of the sum (post-norm)."""

    def __init__(
        self,
        dim: int,
        limit: int,
        *,
        span: AdaptiveSpan | DynamicSpan | None,
        attention: SpanAttention | ExpireAttention,
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


def _remembered(attention: SpanAttention, hidden_BTD: Tensor, state: State) -> tuple[Source, State]:
    """What there is to attend to, as projected or as it came, and the same to be carried."""
    if "memory" in state:
        # It only ever enters the key and value products, so their precision is enough.
        fresh_BTD = hidden_BTD.to(compute_dtype(hidden_BTD))
        memory_BSD = extended(state["memory"], fresh_BTD)
        return memory_BSD, {"memory": memory_BSD}
    fresh = {"keys": attention.key(hidden_BTD), "values": attention.value(hidden_BTD)}
    carried = {name: extended(state[name], new_BTD) for name, new_BTD in fresh.items()}
    return (carried["keys"], carried["values"]), carried


def _longest(lengths_BHT: Tensor) -> list[float]:
    """The longest span of each head in this segment, as numbers."""
    longest: list[float] = lengths_BHT.detach().amax(dim=(0, 2)).tolist()
    return longest
