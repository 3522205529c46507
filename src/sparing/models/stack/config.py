"""Settings of a stack. `StackConfig` is also the registry of blocks: one line makes one known."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from sparing.nn.adaptive_softmax import check_clusters
from sparing.nn.attention.relative import RelativeAttentionConfig
from sparing.nn.attention.single_head import SingleHeadConfig
from sparing.nn.attention.windowed import WindowedAttentionConfig
from sparing.nn.block import Block, BlockConfig, IdentityConfig, ResidualConfig, Role
from sparing.nn.checks import check_at_least, check_counts, check_rates
from sparing.nn.feedforward import BoomConfig, FeedForwardConfig
from sparing.nn.mtp import MTPConfig
from sparing.nn.ngram import NgramConfig
from sparing.nn.recurrent_block import LSTMConfig, QRNNConfig
from sparing.nn.size import SizeLimit, scale_width

__all__ = [
    "BLOCKS",
    "BoomConfig",
    "FeedForwardConfig",
    "MTPConfig",
    "NgramConfig",
    "QRNNConfig",
    "RelativeAttentionConfig",
    "SingleHeadConfig",
    "StackConfig",
    "WindowedAttentionConfig",
    "block_order",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class StackConfig:
    """Settings of the family."""

    vocab_size: int
    """Symbols the model reads and predicts."""
    pattern: str = "af" * 12
    """One letter per block, in order; spaces are ignored. A segment passes `rounds` times through
    the blocks in brackets."""
    rounds: int = 1
    """How often: with the same weights, but a memory and an embedding skip of its own each time."""
    dim: int = 512
    """Width of the residual stream."""
    dropout: float = 0.0
    """On the embedding and on what each block adds."""
    dropout_output: float = 0.0
    """Before the softmax."""
    dropout_words: float = 0.0
    """Share of the vocabulary whose embedding is zeroed for a segment."""
    embedding_skip: bool = True
    """After each block the stream becomes a learned mix of itself and the embedding."""
    tied: bool = False
    """The softmax uses the embedding's vectors."""
    cutoffs: tuple[int, ...] = ()
    """Where words, most frequent first, are cut into clusters; none: one plain softmax."""
    shrink: int = 1
    """How many times narrower each cluster's vectors are than those of the one before, in the
    softmax and, where tied, in the embedding."""
    ngrams: NgramConfig = field(default_factory=NgramConfig)
    mtp: MTPConfig = field(default_factory=MTPConfig)

    # The registry: one line per block. `BLOCKS`, `--set`, searches and benchmarks follow from it.
    # Among blocks of one role, rules such as PAR's prefer the first.
    relative: RelativeAttentionConfig = field(default_factory=RelativeAttentionConfig)
    windowed: WindowedAttentionConfig = field(default_factory=WindowedAttentionConfig)
    single_head: SingleHeadConfig = field(default_factory=SingleHeadConfig)
    feedforward: FeedForwardConfig = field(default_factory=FeedForwardConfig)
    boom: BoomConfig = field(default_factory=BoomConfig)
    lstm: LSTMConfig = field(default_factory=LSTMConfig)
    qrnn: QRNNConfig = field(default_factory=QRNNConfig)
    identity: IdentityConfig = field(default_factory=IdentityConfig)

    def __post_init__(self) -> None:
        check_counts(rounds=self.rounds)
        check_at_least(1, vocab_size=self.vocab_size, dim=self.dim, shrink=self.shrink)
        check_rates(dropout=self.dropout, dropout_output=self.dropout_output)
        check_rates(dropout_words=self.dropout_words)
        block_order(self.pattern, self.rounds)
        if not self.letters or set(self.letters) - self.blocks.keys():
            known = ", ".join(f"{letter} {block.title}" for letter, block in self.blocks.items())
            raise ValueError(f"pattern {self.pattern!r} must be made of: {known}")
        check_clusters(self.vocab_size, self.dim, self.cutoffs, self.shrink)

    @property
    def blocks(self) -> dict[str, BlockConfig]:
        """The settings of every kind of block, by letter."""
        return {block.letter: block for block in self._blocks_by_field().values()}

    def letters_with(self, role: Role) -> str:
        """The letters of all blocks of a role, in the order of the registry."""
        return "".join(letter for letter, block in self.blocks.items() if block.role == role)

    def plain_stack(self) -> "StackConfig":
        """The settings of the stack alone, where a family has more than these."""
        return self

    def build_block(self, letter: str) -> Block:
        """A fresh block of the kind that a letter names."""
        residual = ResidualConfig(dim=self.dim, dropout=self.dropout, rounds=self.rounds)
        return self.blocks[letter].build(residual)

    @property
    def letters(self) -> str:
        """The pattern without spaces and brackets."""
        return "".join(self.pattern.replace("[", " ").replace("]", " ").split())

    @property
    def order(self) -> tuple[int, ...]:
        """The numbers of the blocks in the order in which a segment passes through them."""
        return block_order(self.pattern, self.rounds)

    @property
    def adaptive(self) -> bool:
        """Whether words are clustered."""
        return bool(self.cutoffs) or self.shrink > 1

    def smaller(self, limit: SizeLimit) -> Self:
        """See `ModelConfig`. A few blocks of every kind in the pattern stay."""
        scale = limit.scale(self.dim)
        blocks: dict[str, Any] = {
            name: block.smaller(scale, limit) for name, block in self._blocks_by_field().items()
        }
        return replace(
            self,
            vocab_size=min(self.vocab_size, limit.vocab_size),
            pattern=_first_of_each(self.letters, limit.depth),
            rounds=1,
            dim=scale_width(self.dim, scale),
            cutoffs=limit.cut(self.cutoffs),
            **blocks,
        )

    def _blocks_by_field(self) -> dict[str, BlockConfig]:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, BlockConfig)}


def block_order(pattern: str, rounds: int) -> tuple[int, ...]:
    """The numbers of a pattern's letters in order, those in brackets `rounds` times over."""
    packed = "".join(pattern.split())
    before, opened, rest = packed.partition("[")
    inside, closed, after = rest.partition("]")
    if bool(opened) != bool(closed) or "[" in inside + after or "]" in before + after:
        raise ValueError(f"pattern {pattern!r} must have one pair of brackets at most")
    if rounds > 1 and not inside:
        raise ValueError(f"rounds {rounds} need a part of the pattern in brackets: {pattern!r}")
    start, stop = len(before), len(before) + len(inside)
    repeated = list(range(start, stop)) * rounds
    return (*range(start), *repeated, *range(stop, stop + len(after)))


def _first_of_each(letters: str, count: int) -> str:
    """The pattern with the first `count` blocks of each kind."""
    kept = (at for at, letter in enumerate(letters) if letters[:at].count(letter) < count)
    return "".join(letters[at] for at in kept)


BLOCKS: Mapping[str, BlockConfig] = StackConfig(vocab_size=1).blocks
"""Every kind of block with its default settings, by letter, in the order of the registry."""
