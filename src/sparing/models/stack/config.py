"""The letters of a stack's pattern: the settings of all branches, and how each is made."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sparing.models.api import check_counts
from sparing.models.stack.patterns import looped
from sparing.nn.adaptive_softmax import check_clusters
from sparing.nn.attention.relative import RelativeBlock
from sparing.nn.attention.single_head import SingleHeadBlock
from sparing.nn.attention.windowed import WindowedAttentionBlock
from sparing.nn.block import Block, Identity
from sparing.nn.feedforward import Activation, BoomBlock, FeedForwardBlock
from sparing.nn.ngram import check_ngrams
from sparing.nn.recurrent import RecurrentBlock
from sparing.nn.rotary import PERIOD


@dataclass(frozen=True, kw_only=True, slots=True)
class StackConfig:
    """Settings of the family."""

    vocab_size: int
    """Symbols the model reads and predicts."""
    pattern: str = "af" * 12
    """One letter per branch, in order; spaces are free. See `BRANCHES`. What stands in brackets is
    gone through `rounds` times."""
    rounds: int = 1
    """How often: with the same weights, and a memory and an embedding skip of its own each time."""
    dim: int = 512
    """Width of the residual stream."""
    heads: int = 8
    """Heads of each attention."""
    head_dim: int = 64
    """Width of a head."""
    ff_dim: int = 2048
    """Width inside feed-forward branches."""
    activation: Activation = "relu2"
    """Inside feed-forward branches."""
    boom_dim: int | None = None
    """Width inside Boom, a multiple of `dim`; none: four times `dim`."""
    memory: int = 512
    """Transformer-XL and single-headed attention: positions before the segment they attend to."""
    span_limit: int = 8192
    """Adaptive span: the farthest a head may learn to look, in positions."""
    span_starts: tuple[float, ...] = (32, 64, 128, 256, 512, 1024, 1536, 2048)
    """Adaptive span: where the heads' spans begin, dealt in turn; at the limit if beyond it."""
    span_penalty: float = 0.0
    """Adaptive span: nats per token for each position of the mean span."""
    ramp: int = 32
    """Adaptive span: positions over which a window fades out."""
    gated: bool = False
    """Adaptive span: every head's output is scaled by a gate that reads the stream."""
    key_shift: bool = False
    """Adaptive span: a value goes with the key of the position before it, so that whoever finds a
    place like its own reads what came next there."""
    rotary_fraction: float = 1.0
    """Adaptive span: the share of a head's channels that turn with the position; the others compare
    what is there, however far away. With none, only the window tells far from near."""
    ngrams: tuple[int, ...] = ()
    """Lengths of the token groups, from 2 on, that have hashed vectors; none: single tokens."""
    ngram_rows: int = 32768
    """Rows of each group's table, a power of two."""
    ngram_dim: int = 64
    """Width of those tables."""
    mtp: int = 0
    """Tokens after the next one that training foretells as an exercise; untied weights."""
    mtp_weight: float = 0.3
    """What their nats weigh at first; it falls to nothing by the end of the run."""
    embedding_skip: bool = True
    """After each branch the stream becomes a learned mix of itself and the first embedding."""
    dropout: float = 0.0
    """On the embedding and on what each branch adds."""
    dropout_attention: float = 0.0
    """Transformer-XL attention: on its weights."""
    dropout_output: float = 0.0
    """Before the softmax."""
    dropout_words: float = 0.0
    """Share of the vocabulary that reads as nothing for a segment."""
    weight_drop: float = 0.0
    """Recurrent branches: on the hidden-to-hidden weights."""
    tied: bool = False
    """The softmax uses the embedding's vectors."""
    cutoffs: tuple[int, ...] = ()
    """Where words, most frequent first, are cut into clusters; none: one plain softmax."""
    shrink: int = 1
    """How many times narrower each cluster's vectors are than those of the one before, in the
    softmax and, where tied, in the embedding."""

    def __post_init__(self) -> None:
        check_counts(self)
        for name, least in LEAST.items():
            if not (value := getattr(self, name)) >= least:
                raise ValueError(f"{name} must be at least {least}, not {value}")
        for name in RATES:
            if not 0 <= (value := getattr(self, name)) < 1:
                raise ValueError(f"{name} must be at least 0 and below 1, not {value}")
        if not 0 <= self.rotary_fraction <= 1:
            raise ValueError(f"rotary_fraction must be between 0 and 1, not {self.rotary_fraction}")
        looped(self.pattern, self.rounds)
        if not self.letters or set(self.letters) - set(BRANCHES):
            known = ", ".join(f"{letter} {why}" for letter, (why, _) in BRANCHES.items())
            raise ValueError(f"pattern {self.pattern!r} must be made of: {known}")
        if self.ngrams:
            check_ngrams(self.ngrams, self.ngram_rows, self.ngram_dim)
        if self.span_limit + self.ramp >= PERIOD:
            raise ValueError(f"span_limit {self.span_limit} must stay below {PERIOD - self.ramp}")
        check_clusters(self.vocab_size, self.dim, self.cutoffs, self.shrink)

    @property
    def letters(self) -> str:
        """The pattern without spaces and brackets."""
        return "".join(self.pattern.replace("[", " ").replace("]", " ").split())

    @property
    def places(self) -> tuple[int, ...]:
        """The numbers of the branches in the order in which they are gone through."""
        return looped(self.pattern, self.rounds)

    @property
    def adaptive(self) -> bool:
        """Whether words are clustered."""
        return bool(self.cutoffs) or self.shrink > 1


LEAST = {
    **dict.fromkeys(
        (
            "vocab_size",
            "dim",
            "heads",
            "head_dim",
            "ff_dim",
            "span_limit",
            "ramp",
            "shrink",
            "rounds",
        ),
        1,
    ),
    **dict.fromkeys(("memory", "span_penalty", "mtp", "mtp_weight"), 0),
}
RATES = ("dropout", "dropout_attention", "dropout_output", "dropout_words", "weight_drop")


def _span(c: StackConfig) -> Block:
    starts = [min(start, c.span_limit) for start in c.span_starts]
    return WindowedAttentionBlock(
        c.dim,
        c.heads,
        c.head_dim,
        limit=c.span_limit,
        starts=starts,
        ramp=c.ramp,
        price=c.span_penalty,
        dropout=c.dropout,
        gated=c.gated,
        key_shift=c.key_shift,
        rotary_fraction=c.rotary_fraction,
        rounds=c.rounds,
    )


def _relative(c: StackConfig) -> Block:
    return RelativeBlock(
        c.dim,
        c.heads,
        c.head_dim,
        memory=c.memory,
        dropout=c.dropout,
        dropout_attention=c.dropout_attention,
    )


def _single_head(c: StackConfig) -> Block:
    return SingleHeadBlock(c.dim, memory=c.memory, dropout=c.dropout)


def _lstm(c: StackConfig) -> Block:
    return RecurrentBlock(c.dim, core="lstm", dropout=c.dropout, weight_drop=c.weight_drop)


def _scan(c: StackConfig) -> Block:
    return RecurrentBlock(c.dim, core="qrnn", dropout=c.dropout, weight_drop=c.weight_drop)


def _boom(c: StackConfig) -> Block:
    width = 4 * c.dim if c.boom_dim is None else c.boom_dim
    return BoomBlock(c.dim, width, dropout=c.dropout)


def _feed_forward(c: StackConfig) -> Block:
    return FeedForwardBlock(c.dim, c.ff_dim, dropout=c.dropout, activation=c.activation)


BRANCHES: Mapping[str, tuple[str, Callable[[StackConfig], Block]]] = {
    "a": ("adaptive-span attention", _span),
    "f": ("feed-forward", _feed_forward),
    "x": ("Transformer-XL attention", _relative),
    "s": ("single-headed attention", _single_head),
    "l": ("LSTM", _lstm),
    "g": ("gated scan", _scan),
    "b": ("Boom", _boom),
    "i": ("identity", lambda c: Identity(c.dim)),
}
"""Letter -> what it is, and how it is made."""


def branch(letter: str, config: StackConfig) -> Block:
    """A fresh block of the kind a letter names."""
    return BRANCHES[letter][1](config)
