"""Adaptive Span: a Transformer whose heads learn how far back to look (arXiv:1905.07799).

With persistent vectors in place of the feed-forward layers it is all-attention (arXiv:1907.01470).
Axes: B batch, T segment, M memory, S = M + T keys, D dim, H heads, K head width, L span limit.
"""

import math

import torch
from torch import Tensor, nn

from sparing.models.adaptive_span.config import AdaptiveSpanConfig
from sparing.models.api import Head, LanguageModel, Output, State
from sparing.nn.adaptive_softmax import AdaptiveEmbedding, AdaptiveHead, TiedProjections, shortlist
from sparing.nn.attention.adaptive_span import AdaptiveSpanAttention, AdaptiveSpanLayer
from sparing.nn.attention.expire import ExpireAttention, ExpireSpan
from sparing.nn.attention.memory import memory_widths
from sparing.nn.attention.span import AdaptiveSpan, DynamicSpan
from sparing.nn.block import TypedModuleList
from sparing.nn.dropout import Dropout
from sparing.nn.feedforward import feed_forward
from sparing.nn.head import SoftmaxHead, draw_uniform
from sparing.nn.ring import is_static
from sparing.nn.state import forget_lanes, join_states, split_state, zero_lanes


class AdaptiveSpanTransformer(LanguageModel):
    """Transformer with adaptive attention spans.

    The names in a state tell what it holds: hidden states (`memory`), or `keys` and `values`.
    """

    head: Head
    config: AdaptiveSpanConfig

    def __init__(self, config: AdaptiveSpanConfig) -> None:
        super().__init__()
        c = self.config = config
        self.embedding, self.head = _ends(c)
        # Rows of narrow tables are short vectors; the plain table is used as it is.
        self.scale = math.sqrt(c.dim) if c.cutoffs else 1.0
        self.position = nn.Parameter(torch.randn(c.dim // c.heads, c.positions or c.span_limit))
        self.blocks = TypedModuleList(_layer(c) for _ in range(c.depth))
        self.dropout = Dropout(c.dropout_embedding)
        self.attends_to_empty_slots = c.start == "zeros"
        self.refresh()

    def initial_state(self, batch: int, *, inference: bool = False) -> State:
        """Return zero vectors like the original, or nothing at all (`start`)."""
        self.refresh()
        c, state, like = self.config, State(), self.position.detach()
        for layer, block in enumerate(self.blocks):
            empty = c.start != "zeros" or c.span == "expire"
            length = 0 if empty else block.cache(self._known[layer])
            for name, width in self._widths(inference).items():
                shape = (batch, length) if name == "age" else (batch, length, width)
                dtype = torch.int64 if name == "age" else like.dtype
                state[f"blocks.{layer}.{name}"] = like.new_zeros(shape, dtype=dtype)
        return state

    def static_state(self, batch: int, *, chunk: int = 1) -> State:
        """See `LanguageModel`."""
        self.refresh()
        like, pairs = self.position.detach(), zip(self.blocks, self._known, strict=True)
        return join_states([each.static_state(batch, like, known, chunk) for each, known in pairs])

    def reset_lanes(self, state: State, lanes_B: Tensor) -> State:
        """See `LanguageModel`. Zeros take attention, so without `start=zeros` they are hidden."""
        zeros = zero_lanes(state, lanes_B)
        if self.config.start == "zeros" or self.config.span == "expire":
            return zeros
        blocks = split_state(zeros, self.config.depth)
        return join_states([forget_lanes(own, lanes_B) for own in blocks])

    def forward(self, tokens_BT: Tensor, state: State) -> Output:
        """See `LanguageModel`. Memory is detached: gradients stay inside the segment."""
        hidden_BTD = self.dropout(self.scale * self.embedding(tokens_BT))
        if not is_static(state):
            self.refresh()
        position_KL, carried, means = self._positions_in_reach(), list[State](), list[Tensor]()
        before = split_state(state, self.config.depth)
        for block, own, spans in zip(self.blocks, before, self._known, strict=True):
            hidden_BTD, after, mean = block(hidden_BTD, own, position_KL, spans)
            carried.append(after)
            means.append(mean)
        penalty = self.config.span_penalty * torch.stack(means).sum()
        if self.config.span == "fixed":
            penalty = torch.zeros_like(penalty)
        return Output(self.dropout(hidden_BTD), join_states(carried), penalty)

    def shard_parts(self) -> list[nn.Module]:
        """Return the feed-forward layers; the spans of all blocks are read together."""
        return [block.feed for block in self.blocks if block.feed is not None]

    def compile_parts(self) -> None:
        """Compile the feed-forward layers; shapes inside attention depend on the spans."""
        for block in self.blocks:
            if block.feed is not None:
                block.feed.compile(dynamic=True)

    def flops_per_token(self) -> float:
        """Count two per multiply-add: matrices, windows (keys, positions, values), softmax.

        On the meta device, where spans have no value, windows are at their limit. Keys and values
        count once per token, as if cached; of an adaptive softmax only the first cluster counts.
        """
        c = self.config
        window = sum(sum(seen) for seen in self.windows()) * (c.dim // c.heads)
        feed = 2 * c.dim * (c.persistent or c.ff_dim)
        layers = c.depth * (4 * c.dim**2 + feed)
        softmax = shortlist(c.vocab_size, c.cutoffs) + (c.dim if c.cutoffs else 0)
        return 2.0 * (layers + 3 * window + softmax * c.dim)

    def memory_length(self) -> int:
        """See `LanguageModel`. Where memories expire, none is kept for longer than the limit."""
        return max(self._cached())

    def state_numbers(self, *, inference: bool = False) -> int:
        """Full memories."""
        return sum(self._widths(inference).values()) * sum(self._cached())

    def _cached(self) -> list[int]:
        """Positions that each layer carries."""
        return [block.cache(self._known[layer]) for layer, block in enumerate(self.blocks)]

    def windows(self) -> list[list[int]]:
        """Return the positions each head of each layer uses, with its ramp, at most the limit."""
        c = self.config
        full = [c.span_limit] * c.heads
        return [
            [min(c.span_limit, math.ceil(span) + c.ramp) for span in spans or full]
            for spans in self._known
        ]

    @torch.no_grad()
    def after_step(self) -> None:
        """Clamp the spans of the real weights: `forward` may have seen copies of them."""
        for block in self.blocks:
            if isinstance(block.span, AdaptiveSpan):
                block.span.ratio.clamp_(0, 1)

    def telemetry(self) -> dict[str, float]:
        """Return the window of every head, with its ramp; nothing if it depends on the text."""
        windows = self.learned_windows()
        if not windows:
            return {}
        mean = sum(map(sum, windows.values())) / sum(map(len, windows.values()))
        found = {
            f"span.{layer}.{head}": window
            for layer, row in windows.items()
            for head, window in enumerate(row)
        }
        return {"span.mean": mean, **found}

    def learned_windows(self) -> dict[int, list[float]]:
        """See `LanguageModel`; nothing where they depend on the text."""
        if self.config.span not in ("head", "layer"):
            return {}
        self.refresh()
        return {layer: list(map(float, row)) for layer, row in enumerate(self.windows())}

    def refresh(self) -> None:
        """See `LanguageModel`. The spans of all layers are read in one transfer."""
        learned = [block.span for block in self.blocks if isinstance(block.span, AdaptiveSpan)]
        self._known: list[list[float]] | list[None] = [None] * self.config.depth
        if self.device.type != "meta" and learned:
            self._known = torch.stack([span.lengths().detach() for span in learned]).tolist()

    def _widths(self, inference: bool) -> dict[str, int]:
        c = self.config
        if c.span == "expire":
            return {"memory": c.dim, "age": 1}
        return memory_widths(c.cache, c.dim, c.dim, inference=inference)

    def _positions_in_reach(self) -> Tensor:
        """Return the positions within reach of some head: the others need no gradient."""
        reaches = [self.config.edge.reach(max(spans)) for spans in self._known if spans is not None]
        return self.position[:, -max(reaches) :] if reaches else self.position

    def _role(self, name: str, parameter: nn.Parameter) -> tuple[str, int]:
        return ("table", 1) if name == "position" else super()._role(name, parameter)


def _layer(c: AdaptiveSpanConfig) -> AdaptiveSpanLayer:
    return AdaptiveSpanLayer(
        c.dim,
        c.span_limit,
        span=_span(c),
        attention=_attention(c),
        feed=None if c.persistent else feed_forward(c.dim, c.ff_dim, dropout=c.dropout),
    )


def _span(c: AdaptiveSpanConfig) -> AdaptiveSpan | DynamicSpan | None:
    if c.span == "expire":
        return None
    if c.span == "dynamic":
        return DynamicSpan(c.dim, c.heads, c.span_limit)
    start = 1.0 if c.span == "fixed" else c.span_start
    return AdaptiveSpan(c.heads, c.span_limit, ramp=c.edge, start=start, kind=c.span)


def _attention(c: AdaptiveSpanConfig) -> AdaptiveSpanAttention | ExpireAttention:
    if c.span == "expire":
        span = ExpireSpan(c.dim, c.span_limit, start=c.span_start)
        return ExpireAttention(
            c.dim, c.heads, span=span, ramp=c.ramp, noisy=c.span_noise, dropout=c.dropout
        )
    zeros = c.start == "zeros"
    return AdaptiveSpanAttention(
        c.dim, c.heads, ramp=c.edge, dropout=c.dropout, persistent=c.persistent, zeros=zeros
    )


def _ends(c: AdaptiveSpanConfig) -> tuple[nn.Module, Head]:
    """Return embedding and softmax with the original's initial values."""
    if not c.cutoffs:
        plain = SoftmaxHead.uniform(c.vocab_size, c.dim)
        return nn.Embedding(c.vocab_size, c.dim), plain
    embedding = AdaptiveEmbedding(c.vocab_size, c.dim, cutoffs=c.cutoffs, shrink=c.shrink)
    kind: TiedProjections = "all" if c.tied else "none"
    head = AdaptiveHead(embedding, tied=c.tied, tied_projections=kind)
    own = () if c.tied else (*head.weights, *head.projections)
    # Tied tables keep the scale of embeddings, so the first losses are far above log V.
    for matrix in (*embedding.projections, *own):
        draw_uniform(matrix, matrix.size(1))
    for (low, high), width in zip(embedding.clusters, embedding.widths, strict=True):
        draw_uniform(head.bias[low:high], width)
    return embedding, head
