"""Settings of Transformer-XL; the defaults are the public PyTorch program's model for enwik8."""

import math
from dataclasses import dataclass, replace
from typing import Literal, Self

from sparing.nn.adaptive_softmax import TiedProjections, check_clusters
from sparing.nn.attention.memory import CacheKind
from sparing.nn.checks import check_at_least, check_counts, check_rates
from sparing.nn.size import SizeLimit, scale_width


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformerXLConfig:
    """Settings of the family; the defaults are the 12-layer model for enwik8."""

    vocab_size: int
    """Symbols the model reads and predicts."""
    dim: int = 512
    """Width of the residual stream."""
    depth: int = 12
    """Layers."""
    heads: int = 8
    """Attention heads of a layer."""
    head_dim: int = 64
    """Width of a head."""
    ff_dim: int = 2048
    """Width inside the feed-forward layers."""
    memory: int = 512
    """Positions before the segment that it attends to; can be changed for evaluation."""
    clamp: int | None = None
    """Distances beyond this have the same code as it; none: every distance has its own."""
    same_length: bool = False
    """Each position sees `memory` keys, its own included, wherever it is in the segment."""
    norm: Literal["post", "pre"] = "post"
    """LayerNorm after each residual sum (published), or before each sub-layer."""
    shared_bias: bool = True
    """One pair of content and position biases for all layers, as in the PyTorch program."""
    dropout: float = 0.1
    """On embeddings, positions, both sub-layers' results, inside feed-forward, before the head."""
    dropout_attention: float = 0.0
    """On attention weights."""
    cutoffs: tuple[int, ...] = ()
    """Where words, most frequent first, are cut into clusters; none: one plain softmax."""
    shrink: int = 1
    """How many times narrower each cluster's vectors are than those of the one before."""
    tied: bool = True
    """The softmax uses the embedding's vectors."""
    tied_projections: TiedProjections = "tails"
    """Which clusters' projections softmax and embedding share (only used with `shrink`)."""
    init_std: float = 0.02
    """Standard deviation of initial weights."""
    cache: CacheKind = "auto"
    """What memory holds: hidden states, keys and values, or `auto`: the latter for inference."""

    def __post_init__(self) -> None:
        check_counts(depth=self.depth, heads=self.heads)
        check_at_least(1, vocab_size=self.vocab_size, dim=self.dim, head_dim=self.head_dim)
        check_at_least(1, ff_dim=self.ff_dim, shrink=self.shrink)
        check_at_least(0, memory=self.memory, clamp=self.clamp or 0)
        if self.dim % 2:
            raise ValueError(f"dim {self.dim} must be even: half sines, half cosines")
        if not 0 <= self.init_std < math.inf:
            raise ValueError(f"init_std must be finite and not negative, not {self.init_std}")
        check_rates(dropout=self.dropout, dropout_attention=self.dropout_attention)
        check_clusters(self.vocab_size, self.dim, self.cutoffs, self.shrink)

    def smaller(self, limit: SizeLimit) -> Self:
        """See `ModelConfig`."""
        scale = limit.scale(self.dim)
        return replace(
            self,
            vocab_size=min(self.vocab_size, limit.vocab_size),
            dim=scale_width(self.dim, scale),
            depth=min(self.depth, limit.depth),
            head_dim=scale_width(self.head_dim, scale),
            ff_dim=scale_width(self.ff_dim, scale),
            memory=min(self.memory, limit.memory),
            cutoffs=limit.cut(self.cutoffs),
        )

    @property
    def adaptive(self) -> bool:
        """Whether words are clustered."""
        return bool(self.cutoffs) or self.shrink > 1
