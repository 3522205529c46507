"""Stack: residual blocks in the order of a pattern, one letter each.

Axes: B batch, T segment, D dim, N blocks. The family that searches are retrained as. Every block
norms its own input (pre-norm) and adds little at first: nothing for attention with learned spans
and feed-forward, most for Boom.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparing.models.api import LanguageModel, Output, State
from sparing.models.stack.config import StackConfig
from sparing.models.stack.stream import Residual, compile_groups, run_blocks
from sparing.nn.adaptive_softmax import AdaptiveEmbedding, AdaptiveHead, shortlist
from sparing.nn.attention.span_refresh import SpanRefresh
from sparing.nn.block import Block, BufferedBlock, TypedModuleList, commit, compute
from sparing.nn.dropout import Dropout, RowDropout
from sparing.nn.head import SoftmaxHead
from sparing.nn.kv_buffer import with_gap
from sparing.nn.mtp import MultiTokenPrediction
from sparing.nn.ngram import NgramEmbedding
from sparing.nn.precision import compute_dtype
from sparing.nn.ring import is_static
from sparing.nn.state import add_prefix, select_prefix

TABLE_STD = 0.02


class Stack(LanguageModel):
    """Embedding, blocks, softmax."""

    head: SoftmaxHead | AdaptiveHead
    config: StackConfig

    def __init__(self, config: StackConfig, blocks: Iterable[Block] | None = None) -> None:
        """Use `blocks`, if given, instead of those of the pattern."""
        super().__init__()
        c = self.config = config
        self.embedding, self.head = _embedding_and_head(c)
        self.ngrams = (
            NgramEmbedding(c.dim, lengths=c.ngrams.lengths, rows=c.ngrams.rows, width=c.ngrams.dim)
            if c.ngrams.lengths
            else None
        )
        self.blocks = TypedModuleList(blocks or (c.build_block(letter) for letter in c.letters))
        self.order = tuple(range(len(self.blocks))) if blocks else c.order
        self.dropout, self.dropout_output = Dropout(c.dropout), Dropout(c.dropout_output)
        self.dropout_words = RowDropout(c.vocab_size, c.dropout_words)
        further = c.mtp.tokens
        self.mtp = MultiTokenPrediction(c.dim, c.vocab_size, further) if further else None
        self.mtp_weight = c.mtp.weight
        self.resid_lambdas, self.x0_lambdas = None, None
        if c.embedding_skip:
            self.resid_lambdas = nn.Parameter(torch.ones(len(self.order)))
            self.x0_lambdas = nn.Parameter(torch.zeros(len(self.order)))
        self.run_blocks = run_blocks
        self._groups = list(compile_groups([block for _, block in self._passes()]))

    def initial_state(self, batch: int, *, inference: bool = False) -> State:
        """What each block carries, under its place in the order."""
        return self._join(
            batch, lambda block, like: block.initial_state(batch, like, inference=inference)
        )

    def static_state(self, batch: int, *, chunk: int = 1) -> State:
        """See `LanguageModel`. What each block carries, under its place in the order."""
        return self._join(batch, lambda block, like: block.static_state(batch, like, chunk=chunk))

    def _join(self, batch: int, make: Callable[[Block, Tensor], State]) -> State:
        like, state = next(self.parameters()).detach(), State()
        self.refresh()
        for place, block in self._passes():
            state |= add_prefix(make(block, like), f"blocks.{place}")
        if self.ngrams is not None:
            state["tokens"] = self.ngrams.before(batch, like)
        return state

    def reset_lanes(self, state: State, lanes_B: Tensor) -> State:
        """See `LanguageModel`. Every block resets its own state."""
        begun = State()
        for place, block in self._passes():
            own = block.reset_lanes(select_prefix(state, f"blocks.{place}"), lanes_B)
            begun |= add_prefix(own, f"blocks.{place}")
        if self.ngrams is not None:
            begun["tokens"] = self.ngrams.reset_lanes(state["tokens"], lanes_B)
        return begun

    def forward(self, tokens_BT: Tensor, state: State) -> Output:
        """See `LanguageModel`."""
        # Rings are as long as their heads' spans, so that nothing has to be read from the device.
        # Lists, as a generator that is passed on breaks `torch.compile` of the whole model.
        refresh = SpanRefresh([] if is_static(state) else [*self.modules()])
        x0_BTD, carried = self._embed(tokens_BT, state)
        # A copy: if both were one tensor, the code of the first group would be compiled for that.
        hidden_BTD = x0_BTD.clone() if self.static_shapes else x0_BTD
        before = [self._block_state(state, place) for place, _ in self._passes()]
        after: list[State] = []
        for group, lambdas_2N in zip(self._groups, self._lambdas(), strict=True):
            stream = Residual(hidden_BTD, x0_BTD, lambdas_2N)
            hidden_BTD, left = self._run(group, stream, before[group.start : group.stop])
            after += left
        refresh.finish()
        carried |= self._commit(before, after)
        zero = x0_BTD.new_zeros((), dtype=torch.float32)
        penalty = torch.stack([block.penalty(zero) for block in self.blocks]).sum()
        last_BTD = self.dropout_output(F.rms_norm(hidden_BTD, (self.config.dim,)))
        if self.mtp is not None and self.training:
            penalty = penalty + self.mtp_weight * self.mtp(last_BTD, tokens_BT)
        return Output(last_BTD, carried, penalty)

    def advance(self, tokens_BT: Tensor, state: State) -> State:
        """See `LanguageModel`. What comes after the last block with a state is not computed."""
        # By what they carry: an empty memory has no numbers, but the next segment appends to it.
        places = range(len(self.order))
        stateful = [place for place in places if select_prefix(state, f"blocks.{place}")]
        if self.static_shapes or is_static(state) or not stateful:
            return super().advance(tokens_BT, state)
        self.refresh()
        x0_BTD, carried = self._embed(tokens_BT, state)
        hidden_BTD = x0_BTD
        for place in range(stateful[-1]):
            block, own = self._block(place), self._block_state(state, place)
            stream = Residual(hidden_BTD, x0_BTD, self._lambdas_at(place))
            hidden_BTD, [after] = run_blocks([block], stream, [own], [])
            carried |= add_prefix(commit(block, own, after), f"blocks.{place}")
        last = stateful[-1]
        after = self._block(last).advance(hidden_BTD, self._block_state(state, last))
        return carried | add_prefix(after, f"blocks.{last}")

    def _lambdas_at(self, place: int) -> Tensor | None:
        """The weights of the embedding skip at one place."""
        if self.resid_lambdas is None or self.x0_lambdas is None:
            return None
        return torch.stack([self.resid_lambdas[place], self.x0_lambdas[place]])[:, None]

    def _lambdas(self) -> list[Tensor | None]:
        """The weights of the embedding skip, group by group."""
        if self.resid_lambdas is None or self.x0_lambdas is None:
            return [None for _ in self._groups]
        both_2N = torch.stack([self.resid_lambdas, self.x0_lambdas])
        return list(torch.split(both_2N, [len(group) for group in self._groups], dim=1))

    def _run(
        self, group: range, stream: Residual, states: Sequence[State]
    ) -> tuple[Tensor, list[State]]:
        """The stream after a group of blocks, and their states."""
        blocks = [self._block(place) for place in group]
        deltas, after = [], []
        if not blocks[0].compilable:
            delta_BTD, own = compute(blocks[0], stream.hidden_BTD, states[0])
            deltas, after = [delta_BTD], [own]
        done = len(deltas)
        hidden_BTD, rest = self.run_blocks(blocks[done:], stream, states[done:], deltas)
        return hidden_BTD, after + rest

    def _commit(self, before: Sequence[State], after: Sequence[State]) -> State:
        """What every block carries into the next segment."""
        carried = State()
        for (place, block), *own in zip(self._passes(), before, after, strict=True):
            carried |= add_prefix(commit(block, *own), f"blocks.{place}")
        return carried

    def _block_state(self, state: State, place: int) -> State:
        """The part of the model's state that belongs to one block."""
        own = select_prefix(state, f"blocks.{place}")
        block = self._block(place)
        if self.static_shapes and isinstance(block, BufferedBlock):
            for name in own.keys() & {*block.growing}:
                own[name] = with_gap(own[name])
                torch._dynamo.maybe_mark_dynamic(own[name], 1)
        return own

    def _embed(self, tokens_BT: Tensor, state: State) -> tuple[Tensor, State]:
        """The embedding, and the last tokens, which the next segment needs for its n-grams."""
        vectors_BTD, carried = self.embedding(tokens_BT), State()
        if self.ngrams is not None:
            ngram_BTD, carried["tokens"] = self.ngrams(tokens_BT, state["tokens"])
            vectors_BTD = vectors_BTD + ngram_BTD
        normed_BTD = F.rms_norm(vectors_BTD, (self.config.dim,))
        normed_BTD = self.dropout_words(normed_BTD, tokens_BT)
        return self.dropout(normed_BTD.to(compute_dtype(normed_BTD))), carried

    def before_step(self, step: int, share: float) -> None:
        """Lower the weight of multi-token prediction, to zero at the end of the run."""
        self.mtp_weight = self.config.mtp.weight * (1 - share)

    def collapse(self) -> None:
        """Drop the heads of multi-token prediction, which only training needs."""
        self.mtp = None
        self.config = replace(self.config, mtp=replace(self.config.mtp, tokens=0))

    def after_step(self) -> None:
        """Call it on every block."""
        for block in self.blocks:
            block.after_step()

    def telemetry(self) -> dict[str, float]:
        """The numbers of every block, under its number in the pattern."""
        return {
            ".".join([kind, str(number), *rest]): value
            for number, block in enumerate(self.blocks)
            for name, value in block.telemetry().items()
            for kind, *rest in [name.split(".")]
        }

    def compile_parts(self) -> None:
        """Compile each group of blocks as one; the same code serves all groups of a kind."""
        self.run_blocks, self.static_shapes = torch.compile(run_blocks), True
        if self.ngrams is not None:
            self.ngrams.compile_parts()
        for block in self.blocks:
            if not block.compilable:
                block.compile_parts()

    def refresh(self) -> None:
        """See `LanguageModel`."""
        SpanRefresh([*self.modules()]).finish()

    @torch.no_grad()
    def attention_weights(self, tokens_BT: Tensor, state: State) -> dict[int, Tensor]:
        """See `LanguageModel`; by place in the order."""
        hidden_BTD, found = self._embed(tokens_BT, state)[0], dict[int, Tensor]()
        x0_BTD = hidden_BTD
        for place, block in self._passes():
            own = self._block_state(state, place)
            if (weights_BHTS := block.attention_weights(hidden_BTD, own)) is not None:
                found[place] = weights_BHTS
            stream = Residual(hidden_BTD, x0_BTD, self._lambdas_at(place))
            hidden_BTD, _ = run_blocks([block], stream, [own], [])
        return found

    def learned_windows(self) -> dict[int, list[float]]:
        """See `LanguageModel`; by place in the order."""
        found = {place: block.learned_windows() for place, block in self._passes()}
        return {place: windows for place, windows in found.items() if windows}

    def flops_per_token(self) -> float:
        """Blocks and softmax, without the clusters of rare words."""
        blocks = sum(block.flops_per_token() for _, block in self._passes())
        c = self.config
        return blocks + 2.0 * c.dim * shortlist(c.vocab_size, c.cutoffs)

    def memory_length(self) -> int:
        """See `LanguageModel`."""
        return max((block.memory_length() for _, block in self._passes()), default=0)

    def state_numbers(self, *, inference: bool = False) -> int:
        """What the blocks carry, and the last few tokens."""
        tokens = 0 if self.ngrams is None else self.ngrams.history
        blocks = [block for _, block in self._passes()]
        return tokens + sum(block.state_numbers(inference=inference) for block in blocks)

    def _block(self, place: int) -> Block:
        block = self.blocks[self.order[place]]
        assert isinstance(block, Block)
        return block

    def _passes(self) -> Iterator[tuple[int, Block]]:
        """Every place in the order and the block there; a block in brackets has several places."""
        return ((place, self._block(place)) for place in range(len(self.order)))


def _embedding_and_head(c: StackConfig) -> tuple[nn.Module, SoftmaxHead | AdaptiveHead]:
    if c.adaptive:
        narrow = AdaptiveEmbedding(c.vocab_size, c.dim, cutoffs=c.cutoffs, shrink=c.shrink)
        head = AdaptiveHead(narrow, tied=c.tied, tied_projections="none")
        for weight in narrow.weights if c.tied else head.weights:
            nn.init.normal_(weight, std=TABLE_STD)
        # Untied, rare words have vectors of full width in the embedding.
        return narrow if c.tied else nn.Embedding(c.vocab_size, c.dim), head
    table = nn.Embedding(c.vocab_size, c.dim)
    if not c.tied:
        # All symbols are equally likely at first, and the loss is log V.
        return table, SoftmaxHead(nn.Parameter(torch.zeros(c.vocab_size, c.dim)), bias=False)
    # The embedding is normed before it is read, so its scale is free to suit the softmax.
    nn.init.normal_(table.weight, std=TABLE_STD)
    return table, SoftmaxHead.tied(table)
