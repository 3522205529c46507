"""Transformer-XL: attention over the segment and a memory of earlier ones (arXiv:1901.02860).

Axes: B batch, T segment, S = memory + T keys, D dim, E heads x head dim.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from sparing.models.api import LanguageModel, Output, State
from sparing.models.transformer_xl.block import TransformerXLBlock
from sparing.models.transformer_xl.config import TransformerXLConfig
from sparing.nn.adaptive_softmax import AdaptiveEmbedding, AdaptiveHead, shortlist
from sparing.nn.attention.memory import empty_memory, holds_hidden, memory_widths
from sparing.nn.attention.position_table import PositionTable, sinusoids, whole_blocks
from sparing.nn.attention.relative import RelativeBias
from sparing.nn.block import TypedModuleList
from sparing.nn.dropout import Dropout
from sparing.nn.head import SoftmaxHead
from sparing.nn.ring import is_static, ring_length
from sparing.nn.state import forget_lanes, join_states, split_state

PROJECTION_STD = 0.01


class TransformerXL(LanguageModel):
    """A Transformer with recurrence over segments and relative positions."""

    head: SoftmaxHead | AdaptiveHead
    config: TransformerXLConfig

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        c = self.config = config
        self.embedding, self.head = _ends(c)
        self.bias = RelativeBias(c.heads, c.head_dim) if c.shared_bias else None
        self.blocks = TypedModuleList(TransformerXLBlock(c) for _ in range(c.depth))
        self.dropout = Dropout(c.dropout)
        self._table = PositionTable()
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw weights from normal distributions, gains of norms around 1; zero the biases."""
        for name, parameter in self.named_parameters():
            owner = self.get_submodule(name.rpartition(".")[0])
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif "projections" in name:
                nn.init.normal_(parameter, std=PROJECTION_STD)
            else:
                mean = 1.0 if isinstance(owner, nn.LayerNorm) else 0.0
                nn.init.normal_(parameter, mean, self.config.init_std)

    def initial_state(self, batch: int, *, inference: bool = False) -> State:
        """Return empty memories."""
        like, widths = next(self.parameters()).detach(), self._widths(inference)
        return join_states([empty_memory(widths, batch, like) for _ in self.blocks])

    def static_state(self, batch: int, *, chunk: int = 1) -> State:
        """See `LanguageModel`."""
        memory = self.config.memory
        codes_SD = self._codes(whole_blocks(ring_length(memory, chunk))).flip(0)
        attention = [block.attend.attention for block in self.blocks]
        return join_states(
            [each.static_state(codes_SD, memory, batch, chunk=chunk) for each in attention]
        )

    def reset_lanes(self, state: State, lanes_B: Tensor) -> State:
        """See `LanguageModel`. Memories are not written, only marked as empty in those lanes."""
        blocks = split_state(state, self.config.depth)
        return join_states([forget_lanes(own, lanes_B) for own in blocks])

    def forward(self, tokens_BT: Tensor, state: State) -> Output:
        """See `LanguageModel`. The names in the state tell what memory holds."""
        hidden_BTD = self.dropout(self.embedding(tokens_BT) * math.sqrt(self.config.dim))
        before, carried = split_state(state, self.config.depth), list[State]()
        positions = self._positions(before[0], tokens_BT.size(1))
        for block, own, position_SE in zip(self.blocks, before, positions, strict=True):
            bias = (block.bias or self.bias)()  # type: ignore[misc]  # one of the two is there
            hidden_BTD, after = block(hidden_BTD, own, position_SE, bias)
            carried.append(after)
        hidden_BTD = self.dropout(hidden_BTD)
        return Output(hidden_BTD, join_states(carried), hidden_BTD.new_zeros(()))

    def train(self, mode: bool = True) -> "TransformerXL":
        """Switch between training and evaluation, and drop the projected positions."""
        self._table.clear()
        super().train(mode)
        return self

    def collapse(self) -> None:
        """Carry keys and values: with fixed weights nothing is projected twice."""
        self.config = replace(self.config, cache="kv")

    def shard_parts(self) -> list[nn.Module]:
        """Return the feed-forward halves; positions are projected for all blocks at once."""
        return [block.feed_forward for block in self.blocks]

    def compile_parts(self) -> None:
        """Compile the feed-forward halves: of attention, every length of memory would be."""
        for block in self.blocks:
            block.feed_forward.compile(dynamic=True)

    def flops_per_token(self) -> float:
        """Count two per multiply-add; keys, values and positions cached; rare clusters left out."""
        c = self.config
        width = c.heads * c.head_dim
        layer = 4 * c.dim * width + 3 * c.memory * width + 2 * c.dim * c.ff_dim
        return 2.0 * (c.depth * layer + c.dim * shortlist(c.vocab_size, c.cutoffs))

    def memory_length(self) -> int:
        """See `LanguageModel`."""
        return self.config.memory

    def state_numbers(self, *, inference: bool = False) -> int:
        """Full memories."""
        return self.config.depth * self.config.memory * sum(self._widths(inference).values())

    def _widths(self, inference: bool) -> dict[str, int]:
        c = self.config
        return memory_widths(c.cache, c.dim, c.heads * c.head_dim, inference=inference)

    def _positions(self, state: State, segment: int) -> list[Tensor]:
        """Return the projected codes of all distances, longest first, for every layer.

        `state` is the first block's; the memories of all blocks are equally long.
        """
        if is_static(state):
            return [torch.empty(0) for _ in self.blocks]
        keys = next(tensor.size(1) for tensor in state.values() if tensor.ndim == 3) + segment
        if holds_hidden(state) or self.training or torch.compiler.is_compiling():
            self._table.clear()
            return self._project(keys)
        weights = [block.attend.attention.position.weight for block in self.blocks]
        return self._table.rows(keys, self.config.memory + segment, weights, self._project)

    def _project(self, keys: int) -> list[Tensor]:
        codes_SD = self.dropout(self._codes(keys))
        return [block.attend.attention.position(codes_SD) for block in self.blocks]

    def _codes(self, keys: int) -> Tensor:
        """Return the codes of all distances, longest first."""
        weight = next(self.parameters())
        precise = torch.promote_types(weight.dtype, torch.float32)
        distance_S = torch.arange(keys - 1, -1, -1, device=weight.device, dtype=precise)
        if self.config.clamp is not None:
            distance_S = distance_S.clamp(max=self.config.clamp)
        return sinusoids(distance_S, self.config.dim).to(weight.dtype)


def _ends(c: TransformerXLConfig) -> tuple[nn.Module, SoftmaxHead | AdaptiveHead]:
    if c.adaptive or not c.tied:
        narrow = AdaptiveEmbedding(c.vocab_size, c.dim, cutoffs=c.cutoffs, shrink=c.shrink)
        return narrow, AdaptiveHead(narrow, tied=c.tied, tied_projections=c.tied_projections)
    table = nn.Embedding(c.vocab_size, c.dim)
    return table, SoftmaxHead.tied(table)
