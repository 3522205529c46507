"""Settings of Adaptive Span; the defaults are the 12-layer model for enwik8."""

import math
from dataclasses import dataclass, replace
from typing import Literal, Self

from sparing.nn.attention.memory import CacheKind
from sparing.nn.checks import check_at_least, check_counts, check_rates
from sparing.nn.size import SizeLimit, scale_width
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
    """Width inside the feed-forward layers; unused with persistent vectors."""
    persistent: int = 0
    """Persistent key and value vectors of each head, which replace the feed-forward layers."""
    span_limit: int = 8192
    """The longest window a head may learn, and the number of learned relative positions."""
    span: Literal["head", "layer", "fixed", "dynamic", "expire"] = "head"
    """Spans per head, layer, or query, fixed at the limit, or per memory (arXiv:2105.06548)."""
    span_start: float = 0.0
    """Initial span as a ratio of the limit."""
    span_penalty: float = 5e-7
    """Loss per position of a layer's mean span."""
    ramp: int = 32
    """Positions over which a window fades out."""
    positions: int | None = None
    """`expire` only: nearest distances with a learned position; none: all up to the limit."""
    span_noise: bool = False
    """`expire` only: whether training cuts spans at a length drawn for each segment and layer."""
    mask: Literal["code", "paper"] = "code"
    """The ramp of the code, or of the paper, which is one position shorter."""
    span_gradient: Literal["right", "closed"] = "right"
    """At integer spans: the derivative towards longer ones, or the original's, with both ends."""
    start: Literal["zeros", "masked"] = "zeros"
    """Before a stream's first token: zero vectors that take attention (original), or nothing."""
    cache: CacheKind = "auto"
    """What memory holds: hidden states, keys and values, or `auto`: the latter for inference."""
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
        check_at_least(1, vocab_size=self.vocab_size, dim=self.dim, span_limit=self.span_limit)
        check_at_least(1, shrink=self.shrink)
        check_rates(dropout=self.dropout, dropout_embedding=self.dropout_embedding)
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
        if not 0 <= self.span_penalty < math.inf:
            raise ValueError("span_penalty must be finite and not negative")

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
