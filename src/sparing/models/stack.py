"""Stack: residual branches in the order a pattern names, one letter each.

Axes: B batch, T segment, D dim. The house's own family: what the others taught, in one place, and
what a search over blocks is retrained as. Every branch norms its own input (pre-norm) and starts by
adding little or nothing.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparing.models.api import LanguageModel, Output, State
from sparing.nn.attention import compute_dtype
from sparing.nn.blocks.api import Block, Identity
from sparing.nn.blocks.feedforward import Activation, FeedForward
from sparing.nn.blocks.span import SpanAttention, settle
from sparing.nn.dropout import Dropout
from sparing.nn.head import SoftmaxHead
from sparing.nn.ngram import NgramEmbedding


@dataclass(frozen=True, kw_only=True, slots=True)
class StackConfig:
    """Settings of the family."""

    vocab_size: int
    """Symbols the model reads and predicts."""
    pattern: str = "af" * 12
    """One letter per branch, in order; spaces are free. See `BRANCHES`."""
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
    span_limit: int = 8192
    """Adaptive span: the farthest a head may learn to look, in positions."""
    span_starts: tuple[float, ...] = (32, 64, 128, 256, 512, 1024, 1536, 2048)
    """Adaptive span: where the heads' spans begin, dealt in turn."""
    span_price: float = 0.0
    """Adaptive span: nats per token for each position of the mean span."""
    ramp: int = 32
    """Adaptive span: positions over which a window fades out."""
    ngrams: tuple[int, ...] = ()
    """Lengths of the token groups that have hashed vectors of their own; none: single tokens."""
    ngram_rows: int = 32768
    """Rows of each group's table, a power of two."""
    ngram_dim: int = 64
    """Width of those tables."""
    dropout: float = 0.0
    """On the embedding and on what each branch adds."""

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "dim", "heads", "head_dim", "ff_dim", "span_limit", "ramp")
        for name in sizes:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        strange = sorted(set(self.letters) - set(BRANCHES))
        if strange or not self.letters:
            known = ", ".join(f"{letter} {why}" for letter, (why, _) in BRANCHES.items())
            raise ValueError(f"pattern {self.pattern!r} must be made of: {known}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, not {self.dropout}")
        if self.span_price < 0:
            raise ValueError(f"span_price must not be negative, not {self.span_price}")

    @property
    def letters(self) -> str:
        """The pattern without spaces."""
        return "".join(self.pattern.split())


def _span(c: StackConfig) -> Block:
    starts = [min(start, c.span_limit) for start in c.span_starts]
    return SpanAttention(
        c.dim,
        c.heads,
        c.head_dim,
        limit=c.span_limit,
        starts=starts,
        ramp=c.ramp,
        price=c.span_price,
        dropout=c.dropout,
    )


def _feed_forward(c: StackConfig) -> Block:
    return FeedForward(c.dim, c.ff_dim, dropout=c.dropout, activation=c.activation)


BRANCHES: Mapping[str, tuple[str, Callable[[StackConfig], Block]]] = {
    "a": ("adaptive-span attention", _span),
    "f": ("feed-forward", _feed_forward),
    "i": ("identity", lambda c: Identity(c.dim)),
}
"""Letter -> what it is, and how it is made."""


class Stack(LanguageModel):
    """Embedding, branches, softmax."""

    head: SoftmaxHead

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        c = self.config = config
        self.embedding = nn.Embedding(c.vocab_size, c.dim)
        self.ngrams = (
            NgramEmbedding(c.dim, lengths=c.ngrams, rows=c.ngram_rows, width=c.ngram_dim)
            if c.ngrams
            else None
        )
        self.blocks = nn.ModuleList(BRANCHES[letter][1](c) for letter in c.letters)
        self.dropout = Dropout(c.dropout)
        self.keep = nn.Parameter(torch.ones(len(self.blocks)))
        self.remind = nn.Parameter(torch.zeros(len(self.blocks)))
        self.blend = blend
        # The first guess is the same for every symbol, and costs log V.
        self.head = SoftmaxHead(nn.Parameter(torch.zeros(c.vocab_size, c.dim)), bias=False)

    def initial_state(self, batch: int) -> State:
        """What each branch carries, under its number."""
        like = self.head.weight.detach()
        settle(self.blocks)
        state = State()
        for number, block in self._numbered():
            own = block.initial_state(batch, like)
            state |= {f"blocks.{number}.{name}": tensor for name, tensor in own.items()}
        if self.ngrams is not None:
            state["tokens"] = self.ngrams.before(batch, like)
        return state

    def forward(self, tokens_BT: Tensor, state: State) -> Output:
        """See `LanguageModel`."""
        settle(self.blocks)
        first_BTD, carried = self._embed(tokens_BT, state)
        hidden_BTD, penalty = first_BTD, first_BTD.new_zeros((), dtype=torch.float32)
        shares = zip(self.keep.unbind(), self.remind.unbind(), strict=True)
        for (number, block), (keep, remind) in zip(self._numbered(), shares, strict=True):
            delta_BTD, after = block(hidden_BTD, _of_block(state, number))
            hidden_BTD = self.blend(hidden_BTD, delta_BTD, first_BTD, keep, remind)
            penalty = penalty + block.penalty(penalty)
            carried |= {f"blocks.{number}.{name}": tensor for name, tensor in after.items()}
        return Output(F.rms_norm(hidden_BTD, (self.config.dim,)), carried, penalty)

    def _embed(self, tokens_BT: Tensor, state: State) -> tuple[Tensor, State]:
        """The first vectors, and what the next segment must know of this one's tokens."""
        vectors_BTD, carried = self.embedding(tokens_BT), State()
        if self.ngrams is not None:
            grouped_BTD, carried["tokens"] = self.ngrams(tokens_BT, state["tokens"])
            vectors_BTD = vectors_BTD + grouped_BTD
        normed_BTD = F.rms_norm(vectors_BTD, (self.config.dim,))
        return self.dropout(normed_BTD.to(compute_dtype(normed_BTD))), carried

    def after_step(self) -> None:
        """Pass it on."""
        for _, block in self._numbered():
            block.after_step()

    def telemetry(self) -> dict[str, float]:
        """Every branch's own, under its number."""
        return {
            f"{name}.{number}": value
            for number, block in self._numbered()
            for name, value in block.telemetry().items()
        }

    def compile_parts(self) -> None:
        """Branch by branch; the same code serves all of a kind."""
        self.blend = torch.compile(blend)
        for _, block in self._numbered():
            block.compile_parts()

    def flops_per_token(self) -> float:
        """Branches and softmax."""
        branches = sum(block.flops_per_token() for _, block in self._numbered())
        return branches + 2.0 * self.head.weight.numel()

    def state_numbers(self) -> int:
        """What the branches carry, and the last few tokens."""
        tokens = 0 if self.ngrams is None else self.ngrams.history
        return tokens + sum(block.state_numbers() for _, block in self._numbered())

    def _numbered(self) -> Iterator[tuple[int, Block]]:
        for number, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            yield number, block


def blend(
    hidden_BTD: Tensor, delta_BTD: Tensor, first_BTD: Tensor, keep: Tensor, remind: Tensor
) -> Tensor:
    """The stream after a branch: a learned mix of it and of the first embedding."""
    dtype = hidden_BTD.dtype
    return keep.to(dtype) * (hidden_BTD + delta_BTD) + remind.to(dtype) * first_BTD


def _of_block(state: State, number: int) -> State:
    prefix = f"blocks.{number}."
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in state.items()
        if name.startswith(prefix)
    }
