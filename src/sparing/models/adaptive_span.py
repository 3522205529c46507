"""Adaptive Span: a Transformer whose heads learn how far back to look (arXiv:1905.07799).

With persistent vectors in place of the feed-forward layers it is all-attention (arXiv:1907.01470).
Axes: B batch, T segment, M memory, S = M + T keys, D dim, H heads, K head width, L span limit.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

import torch
from torch import Tensor, nn

from sparing.models.api import Head, LanguageModel, Output, State
from sparing.nn.adaptive_softmax import AdaptiveEmbedding, AdaptiveHead, TiedProjections, shortlist
from sparing.nn.attention.adaptive_span import AdaptiveSpanAttention, AdaptiveSpanLayer
from sparing.nn.attention.expire import ExpireAttention, ExpireSpan
from sparing.nn.attention.span import AdaptiveSpan, DynamicSpan
from sparing.nn.block import TypedModuleList
from sparing.nn.checks import check_counts
from sparing.nn.feedforward import feed_forward
from sparing.nn.head import SoftmaxHead
from sparing.nn.size import SizeLimit, scale_width
from sparing.nn.state import emptied, owned, part, zeroed
from sparing.ops.span_attention import Ramp


@dataclass(frozen=True, kw_only=True, slots=True)
class AdaptiveSpanConfig:
    """Settings of the family; the defaults are the 12-layer enwik8 model."""

    vocab_size: int
    """Symbols the model reads and predicts."""
    dim: int = 512
    """Width of the embedding and of every layer."""
    depth: int = 12
    """Layers."""
    heads: int = 8
    """Attention heads of a layer; they divide `dim`."""
    ff_dim: int = 2048
    """Width inside the feed-forward layers; unused where there are persistent vectors."""
    persistent: int = 0
    """Persistent key and value vectors of each head, which replace the feed-forward layers."""
    span_limit: int = 8192
    """The longest window a head may learn; as many relative positions are learnt."""
    span: Literal["head", "layer", "fixed", "dynamic", "expire"] = "head"
    """A span for every head, one for a layer, none (whole windows), or one for every query.

    `expire`: for every memory, as in Expire-Span (arXiv:2105.06548).
    """
    span_start: float = 0.0
    """First span as a ratio of the limit."""
    span_penalty: float = 5e-7
    """Loss per position of a layer's mean span."""
    ramp: int = 32
    """Positions over which a window fades out."""
    positions: int | None = None
    """`expire` only: nearest distances with a learnt position; none: all up to the limit."""
    span_noise: bool = False
    """`expire` only: whether training cuts spans at a length drawn for each segment and layer."""
    mask: Literal["code", "paper"] = "code"
    """The ramp as coded, or as printed, which is one position shorter."""
    span_gradient: Literal["right", "closed"] = "right"
    """At whole spans: the derivative towards longer ones, or the original's, with both ends."""
    start: Literal["zeros", "masked"] = "zeros"
    """Before a stream's first token: zero vectors that take attention (original), or nothing."""
    cache: Literal["auto", "hidden", "kv"] = "auto"
    """What is carried: layer inputs, projected anew by the present weights, or keys and values.

    `auto` carries keys and values where no gradients are taken: the weights cannot change there.
    """
    cutoffs: tuple[int, ...] = ()
    """Word ranks at which the vocabulary is cut into clusters; none: a plain table and softmax."""
    shrink: int = 4
    """How many times narrower each cluster is than the one before."""
    tied: bool = True
    """Whether the clusters' tables and projections serve both ends (the plain ones never do)."""
    dropout: float = 0.3
    """Dropout on attention weights and inside the feed-forward layers."""
    dropout_embedding: float = 0.0
    """Dropout on the embedding and before the softmax."""

    def __post_init__(self) -> None:
        check_counts(depth=self.depth, heads=self.heads)
        if min(self.vocab_size, self.dim, self.depth, self.heads, self.span_limit) < 1:
            raise ValueError("vocab_size, dim, depth, heads and span_limit must be positive")
        if self.dim % self.heads:
            raise ValueError(f"dim {self.dim} must be a multiple of heads {self.heads}")
        if self.persistent < 0 or (self.persistent == 0 and self.ff_dim < 1):
            raise ValueError("persistent must not be negative, ff_dim be positive without it")
        if self.ramp < 1 + (self.mask == "paper"):
            raise ValueError(f"ramp {self.ramp} is too short: nothing would be seen")
        if list(self.cutoffs) != sorted({*self.cutoffs}) or min(self.cutoffs, default=1) < 1:
            raise ValueError(f"cutoffs {self.cutoffs} must be positive and rise")
        if not 0 <= self.span_start <= 1:
            raise ValueError(f"span_start is a ratio between 0 and 1, not {self.span_start}")
        if self.span == "expire" and (self.persistent or not 0 < self.span_start < 1):
            raise ValueError("span=expire needs span_start between 0 and 1, no persistent vectors")
        if self.positions is not None and (self.positions < 1 or self.span != "expire"):
            raise ValueError("positions are for span=expire, and at least 1")
        self._check_rates()

    def _check_rates(self) -> None:
        if self.shrink < 1 or not 0 <= self.span_penalty < math.inf:
            raise ValueError("shrink must be at least 1, span_penalty finite and not negative")
        if not 0 <= self.dropout < 1 or not 0 <= self.dropout_embedding < 1:
            raise ValueError("dropout and dropout_embedding must be at least 0 and below 1")

    def smaller(self, limit: SizeLimit) -> Self:
        """See `ModelConfig`."""
        scale = limit.scale(self.dim)
        return replace(
            self,
            vocab_size=min(self.vocab_size, limit.vocab_size),
            dim=scale_width(self.dim, scale),
            depth=min(self.depth, limit.depth),
            ff_dim=self.ff_dim and scale_width(self.ff_dim, scale),
            persistent=min(self.persistent, limit.memory),
            span_limit=min(self.span_limit, limit.memory),
            cutoffs=limit.cut(self.cutoffs),
        )

    @property
    def edge(self) -> Ramp:
        """The shape of a window's far edge."""
        return Ramp(self.ramp, int(self.mask == "code"), self.span_gradient == "closed")


class AdaptiveSpanTransformer(LanguageModel):
    """Transformer with adaptive attention spans.

    A state says itself what it carries: layer inputs (`memory`), or `keys` and `values`.
    """

    head: Head

    def __init__(self, config: AdaptiveSpanConfig) -> None:
        super().__init__()
        c = self.config = config
        self.embedding, self.head = _adaptive_tables(c) if c.cutoffs else _plain_tables(c)
        # Rows of narrow tables come out short; the plain one is used as it is.
        self.scale = math.sqrt(c.dim) if c.cutoffs else 1.0
        self.position = nn.Parameter(torch.randn(c.dim // c.heads, c.positions or c.span_limit))
        self.blocks = TypedModuleList(_layer(c) for _ in range(c.depth))
        self.dropout = nn.Dropout(c.dropout_embedding)

    def initial_state(self, batch: int) -> State:
        """Zero vectors as the original has them, or nothing at all (`start`)."""
        c, known, state = self.config, self._spans(), State()
        for layer, block in enumerate(self.blocks):
            zeros = c.start == "zeros" and c.span != "expire"
            length = block.cache(known[layer]) if zeros else 0
            for name in self._carried():
                shape = (batch, length) if name == "age" else (batch, length, c.dim)
                dtype = torch.int64 if name == "age" else self.position.dtype
                zero = torch.zeros(shape, device=self.device, dtype=dtype)
                state[f"blocks.{layer}.{name}"] = zero
        return state

    def reset_lanes(self, state: State, lanes_B: Tensor) -> State:
        """See `LanguageModel`. Zeros take attention, so where there were none they must not."""
        zeros, begun = zeroed(state, lanes_B), State()
        if self.config.start == "zeros" or self.config.span == "expire":
            return zeros
        for layer in range(self.config.depth):
            own = emptied(part(zeros, f"blocks.{layer}"), lanes_B)
            begun |= owned(own, f"blocks.{layer}")
        return begun

    def forward(self, tokens_BT: Tensor, state: State) -> Output:
        """See `LanguageModel`. Memory is cut from the graph: gradients stay inside the segment."""
        hidden_BTD, carried = self.dropout(self.scale * self.embedding(tokens_BT)), State()
        known, means = self._spans(), []
        position_KL = self._reached(known)
        for layer, block in enumerate(self.blocks):
            own = part(state, f"blocks.{layer}")
            hidden_BTD, after, mean = block(hidden_BTD, own, position_KL, known[layer])
            carried |= owned(after, f"blocks.{layer}")
            means.append(mean)
        penalty = self.config.span_penalty * torch.stack(means).sum()
        if self.config.span == "fixed":
            penalty = torch.zeros_like(penalty)
        return Output(self.dropout(hidden_BTD), carried, penalty)

    def shard_parts(self) -> list[nn.Module]:
        """The feed-forward layers; the spans of all blocks are looked at together."""
        return [block.feed for block in self.blocks if block.feed is not None]

    def compile_parts(self) -> None:
        """The feed-forward layers; attention picks its shapes from the spans."""
        for block in self.blocks:
            if block.feed is not None:
                block.feed.compile(dynamic=True)

    def flops_per_token(self) -> float:
        """Two per multiply-add: matrices, each head's window (keys, positions, values), softmax.

        On the meta device, where spans have no value, windows are at their limit. Keys and values
        count once per token, as if cached, and of an adaptive softmax the first cluster alone.
        """
        c = self.config
        window = sum(sum(seen) for seen in self.windows()) * (c.dim // c.heads)
        feed = 2 * c.dim * (c.persistent or c.ff_dim)
        layers = c.depth * (4 * c.dim**2 + feed)
        softmax = shortlist(c.vocab_size, c.cutoffs) + (c.dim if c.cutoffs else 0)
        return 2.0 * (layers + 3 * window + softmax * c.dim)

    def state_numbers(self) -> int:
        """Full caches, of the kind `initial_state` would make now."""
        known = self._spans()
        lengths = [block.cache(known[layer]) for layer, block in enumerate(self.blocks)]
        widths = [1 if name == "age" else self.config.dim for name in self._carried()]
        return sum(widths) * sum(lengths)

    def windows(self) -> list[list[int]]:
        """Positions that each head of each layer uses, its ramp included; at most the limit."""
        c = self.config
        whole = [c.span_limit] * c.heads
        return [
            [min(c.span_limit, math.ceil(span) + c.ramp) for span in spans or whole]
            for spans in self._spans()
        ]

    @torch.no_grad()
    def after_step(self) -> None:
        """Keep spans in range where the weights are: `forward` may have been given copies."""
        for block in self.blocks:
            if isinstance(block.span, AdaptiveSpan):
                block.span.ratio.clamp_(0, 1)

    def telemetry(self) -> dict[str, float]:
        """The window of every head, its ramp included; nothing where it depends on the text."""
        if self.config.span not in ("head", "layer"):
            return {}
        windows = self.windows()
        mean = sum(map(sum, windows)) / sum(map(len, windows))
        found = {
            f"span.{layer}.{head}": float(window)
            for layer, row in enumerate(windows)
            for head, window in enumerate(row)
        }
        return {"span.mean": mean, **found}

    def _carried(self) -> tuple[str, ...]:
        cached = self.config.cache == "kv" or not torch.is_grad_enabled()
        if self.config.span == "expire":
            return "memory", "age"
        return ("keys", "values") if cached and self.config.cache != "hidden" else ("memory",)

    def _spans(self) -> list[list[float]] | list[None]:
        """The spans of every layer as numbers, fetched in one go; None if they have none."""
        learnt = [block.span for block in self.blocks if isinstance(block.span, AdaptiveSpan)]
        if self.device.type == "meta" or not learnt:
            return [None] * self.config.depth
        spans: list[list[float]] = torch.stack([s.lengths().detach() for s in learnt]).tolist()
        return spans

    def _reached(self, known: Sequence[Sequence[float] | None]) -> Tensor:
        """The positions within reach of some head: the others need no gradient."""
        reaches = [self.config.edge.reach(max(spans)) for spans in known if spans is not None]
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


def _plain_tables(c: AdaptiveSpanConfig) -> tuple[nn.Module, Head]:
    """Embedding and softmax, which are not tied; both start as torch would start them."""
    head = SoftmaxHead(nn.Parameter(torch.empty(c.vocab_size, c.dim)))
    for parameter in head.parameters():
        nn.init.uniform_(parameter, -(c.dim**-0.5), c.dim**-0.5)
    return nn.Embedding(c.vocab_size, c.dim), head


def _adaptive_tables(c: AdaptiveSpanConfig) -> tuple[nn.Module, Head]:
    """Clusters of falling frequency, with the original's initial values.

    Its tied tables are as large as embeddings, so that the first losses are far above log V.
    """
    embedding = AdaptiveEmbedding(c.vocab_size, c.dim, cutoffs=c.cutoffs, shrink=c.shrink)
    kind: TiedProjections = "all" if c.tied else "none"
    head = AdaptiveHead(embedding, tied=c.tied, tied_projections=kind)
    own = () if c.tied else (*head.weights, *head.projections)
    for matrix in (*embedding.projections, *own):
        nn.init.uniform_(matrix, -(matrix.size(1) ** -0.5), matrix.size(1) ** -0.5)
    for (low, high), width in zip(embedding.clusters, embedding.widths, strict=True):
        nn.init.uniform_(head.bias[low:high], -(width**-0.5), width**-0.5)
    return embedding, head
