"""Stack: residual branches in the order a pattern names, one letter each.

Axes: B batch, T segment, D dim. The house's own family: what the others taught, in one place, and
what a search over blocks is retrained as. Every branch norms its own input (pre-norm) and starts by
adding little: nothing for attention with learned spans and feed-forward, most for Boom.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparing.models.api import LanguageModel, Output, State
from sparing.models.stack.config import StackConfig, branch
from sparing.nn.adaptive_softmax import AdaptiveEmbedding, AdaptiveHead, shortlist
from sparing.nn.attention.windowed import SpanRefresh
from sparing.nn.block import Block, BufferedBlock, TypedModuleList, commit, compute
from sparing.nn.dropout import Dropout, RowDropout
from sparing.nn.head import SoftmaxHead
from sparing.nn.kv_buffer import with_gap
from sparing.nn.mtp import MultiTokenPrediction
from sparing.nn.ngram import NgramEmbedding
from sparing.nn.precision import compute_dtype
from sparing.nn.state import add_prefix, select_prefix

TABLE_STD = 0.02


class Residual(NamedTuple):
    """The residual stream on its way into some branches."""

    hidden_BTD: Tensor
    first_BTD: Tensor
    """The embedding, of which every branch is reminded."""
    shares_2N: Tensor | None
    """How much of the two is kept after each branch."""


class Stack(LanguageModel):
    """Embedding, branches, softmax."""

    head: SoftmaxHead | AdaptiveHead

    def __init__(self, config: StackConfig, blocks: Iterable[Block] | None = None) -> None:
        """With `blocks`, those instead of the pattern's."""
        super().__init__()
        c = self.config = config
        self.embedding, self.head = _ends(c)
        self.ngrams = (
            NgramEmbedding(c.dim, lengths=c.ngrams, rows=c.ngram_rows, width=c.ngram_dim)
            if c.ngrams
            else None
        )
        self.blocks = TypedModuleList(blocks or (branch(letter, c) for letter in c.letters))
        self.places = tuple(range(len(self.blocks))) if blocks else c.places
        self.dropout, self.dropout_output = Dropout(c.dropout), Dropout(c.dropout_output)
        self.dropout_words = RowDropout(c.vocab_size, c.dropout_words)
        self.mtp = MultiTokenPrediction(c.dim, c.vocab_size, c.mtp) if c.mtp else None
        self.fading = 1.0
        self.keep, self.remind = None, None
        if c.embedding_skip:
            self.keep = nn.Parameter(torch.ones(len(self.places)))
            self.remind = nn.Parameter(torch.zeros(len(self.places)))
        self.through = through
        self._groups = list(grouped([block for _, block in self._placed()]))

    def initial_state(self, batch: int, *, inference: bool = False) -> State:
        """What each branch carries, under its place."""
        like = next(self.parameters()).detach()
        self.refresh()
        state = State()
        for place, block in self._placed():
            own = block.initial_state(batch, like, inference=inference)
            state |= add_prefix(own, f"blocks.{place}")
        if self.ngrams is not None:
            state["tokens"] = self.ngrams.before(batch, like)
        return state

    def reset_lanes(self, state: State, lanes_B: Tensor) -> State:
        """See `LanguageModel`. Every branch knows how its own begins."""
        begun = State()
        for place, block in self._placed():
            own = block.reset_lanes(select_prefix(state, f"blocks.{place}"), lanes_B)
            begun |= add_prefix(own, f"blocks.{place}")
        if self.ngrams is not None:
            begun["tokens"] = self.ngrams.reset_lanes(state["tokens"], lanes_B)
        return begun

    def forward(self, tokens_BT: Tensor, state: State) -> Output:
        """See `LanguageModel`."""
        refresh = SpanRefresh(self.modules())
        first_BTD, carried = self._embed(tokens_BT, state)
        # A copy: that the two were one would be compiled into the code of the first group.
        hidden_BTD = first_BTD.clone() if self.static_shapes else first_BTD
        before = [self._own(state, place) for place, _ in self._placed()]
        after: list[State] = []
        for group, share in zip(self._groups, self._shares(), strict=True):
            stream = Residual(hidden_BTD, first_BTD, share)
            hidden_BTD, left = self._run(group, stream, before[group.start : group.stop])
            after += left
        refresh.finish()
        carried |= self._kept(before, after)
        zero = first_BTD.new_zeros((), dtype=torch.float32)
        penalty = torch.stack([block.penalty(zero) for block in self.blocks]).sum()
        last_BTD = self.dropout_output(F.rms_norm(hidden_BTD, (self.config.dim,)))
        if self.mtp is not None and self.training:
            weight = self.config.mtp_weight * self.fading
            penalty = penalty + weight * self.mtp(last_BTD, tokens_BT)
        return Output(last_BTD, carried, penalty)

    def _shares(self) -> list[Tensor | None]:
        """How each group's branches are blended; nothing where they are only added."""
        if self.keep is None or self.remind is None:
            return [None for _ in self._groups]
        both_2N = torch.stack([self.keep, self.remind])
        return list(torch.split(both_2N, [len(group) for group in self._groups], dim=1))

    def _run(
        self, group: range, stream: Residual, states: Sequence[State]
    ) -> tuple[Tensor, list[State]]:
        """The stream after some consecutive branches, and what they leave behind."""
        blocks = [self._at(place) for place in group]
        deltas, after = [], []
        if not blocks[0].compilable:
            delta_BTD, own = compute(blocks[0], stream.hidden_BTD, states[0])
            deltas, after = [delta_BTD], [own]
        led = len(deltas)
        hidden_BTD, rest = self.through(blocks[led:], stream, states[led:], deltas)
        return hidden_BTD, after + rest

    def _kept(self, before: Sequence[State], after: Sequence[State]) -> State:
        """What every branch carries on."""
        carried = State()
        for (place, block), *own in zip(self._placed(), before, after, strict=True):
            carried |= add_prefix(commit(block, *own), f"blocks.{place}")
        return carried

    def _own(self, state: State, place: int) -> State:
        """What a branch carried here."""
        own = select_prefix(state, f"blocks.{place}")
        block = self._at(place)
        if self.static_shapes and isinstance(block, BufferedBlock):
            for name in block.growing:
                own[name] = with_gap(own[name])
                torch._dynamo.maybe_mark_dynamic(own[name], 1)
        return own

    def _embed(self, tokens_BT: Tensor, state: State) -> tuple[Tensor, State]:
        """The first vectors, and what the next segment must know of this one's tokens."""
        vectors_BTD, carried = self.embedding(tokens_BT), State()
        if self.ngrams is not None:
            grouped_BTD, carried["tokens"] = self.ngrams(tokens_BT, state["tokens"])
            vectors_BTD = vectors_BTD + grouped_BTD
        normed_BTD = F.rms_norm(vectors_BTD, (self.config.dim,))
        normed_BTD = self.dropout_words(normed_BTD, tokens_BT)
        return self.dropout(normed_BTD.to(compute_dtype(normed_BTD))), carried

    def before_step(self, step: int, share: float) -> None:
        """Foretelling weighs less and less."""
        self.fading = 1 - share

    def collapse(self) -> None:
        """Foretelling was an exercise."""
        self.mtp = None

    def after_step(self) -> None:
        """Pass it on."""
        for block in self.blocks:
            block.after_step()

    def telemetry(self) -> dict[str, float]:
        """Every branch's own, under its number."""
        return {
            ".".join([kind, str(number), *rest]): value
            for number, block in enumerate(self.blocks)
            for name, value in block.telemetry().items()
            for kind, *rest in [name.split(".")]
        }

    def compile_parts(self) -> None:
        """Groups of branches, each as one; the same code serves all groups of a kind."""
        self.through, self.static_shapes = torch.compile(through), True
        if self.ngrams is not None:
            self.ngrams.compile_parts()
        for block in self.blocks:
            if not block.compilable:
                block.compile_parts()

    def refresh(self) -> None:
        """See `LanguageModel`."""
        SpanRefresh(self.modules()).finish()

    def flops_per_token(self) -> float:
        """Branches and softmax, rarer clusters left out."""
        branches = sum(block.flops_per_token() for _, block in self._placed())
        c = self.config
        return branches + 2.0 * c.dim * shortlist(c.vocab_size, c.cutoffs)

    def state_numbers(self, *, inference: bool = False) -> int:
        """What the branches carry, and the last few tokens."""
        tokens = 0 if self.ngrams is None else self.ngrams.history
        blocks = [block for _, block in self._placed()]
        return tokens + sum(block.state_numbers(inference=inference) for block in blocks)

    def _at(self, place: int) -> Block:
        block = self.blocks[self.places[place]]
        assert isinstance(block, Block)
        return block

    def _placed(self) -> Iterator[tuple[int, Block]]:
        """Every branch as often as it is gone through."""
        return ((place, self._at(place)) for place in range(len(self.places)))


def _ends(c: StackConfig) -> tuple[nn.Module, SoftmaxHead | AdaptiveHead]:
    """What reads symbols and what predicts them."""
    if c.adaptive:
        narrow = AdaptiveEmbedding(c.vocab_size, c.dim, cutoffs=c.cutoffs, shrink=c.shrink)
        head = AdaptiveHead(narrow, tied=c.tied, tied_projections="none")
        for weight in narrow.weights if c.tied else head.weights:
            nn.init.normal_(weight, std=TABLE_STD)
        # Rare words are read in full where that is not the softmax's own table.
        return narrow if c.tied else nn.Embedding(c.vocab_size, c.dim), head
    table = nn.Embedding(c.vocab_size, c.dim)
    if not c.tied:
        # The first guess is the same for every symbol, and costs log V.
        return table, SoftmaxHead(nn.Parameter(torch.zeros(c.vocab_size, c.dim)), bias=False)
    # The embedding is normed before it is read, so its scale is free to suit the softmax.
    nn.init.normal_(table.weight, std=TABLE_STD)
    return table, SoftmaxHead.tied(table)


def through(
    blocks: Sequence[Block], stream: Residual, states: Sequence[State], deltas: Sequence[Tensor]
) -> tuple[Tensor, list[State]]:
    """The stream after `blocks`, and their states; `deltas` were computed before them."""
    hidden_BTD, carried = stream.hidden_BTD, []
    for number, delta_BTD in enumerate(deltas):
        hidden_BTD = blend(stream, hidden_BTD + delta_BTD, number)
    for number, (block, state) in enumerate(zip(blocks, states, strict=True), len(deltas)):
        delta_BTD, after = compute(block, hidden_BTD, state)
        hidden_BTD = blend(stream, hidden_BTD + delta_BTD, number)
        carried.append(after)
    return hidden_BTD, carried


def blend(stream: Residual, hidden_BTD: Tensor, number: int) -> Tensor:
    """A learned mix of the stream and the first embedding, where there is one."""
    if stream.shares_2N is None:
        return hidden_BTD
    keep, remind = stream.shares_2N[:, number].unbind()
    # In the shares' own precision: bfloat16 would round 1.003 to 1, but only where not compiled.
    mixed_BTD = keep * hidden_BTD.to(keep.dtype) + remind * stream.first_BTD.to(keep.dtype)
    return mixed_BTD.to(hidden_BTD.dtype)


def grouped(blocks: Sequence[Block]) -> Iterator[range]:
    """Branches to be compiled as one: each group ends after one that carries no state.

    One that cannot be compiled with its neighbours begins a group.
    """
    start = 0
    for number, block in enumerate(blocks):
        if number > start and not block.compilable:
            yield range(start, number)
            start = number
        if block.compilable and not block.state_numbers():
            yield range(start, number + 1)
            start = number + 1
    if start < len(blocks):
        yield range(start, len(blocks))
