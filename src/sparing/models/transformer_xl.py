"""Transformer-XL: attention over the segment and a memory of earlier ones (arXiv:1901.02860).

Axes: B batch, T segment, M memory, S = M + T keys, D dim, F feed-forward, E heads x head dim. The
defaults are the public PyTorch program's model for enwik8.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal, Self

import torch
from torch import Tensor, nn

from sparing.models.api import LanguageModel, Output, State
from sparing.nn.adaptive_softmax import (
    AdaptiveEmbedding,
    AdaptiveHead,
    TiedProjections,
    check_clusters,
    shortlist,
)
from sparing.nn.attention.memory import (
    CacheKind,
    empty_memory,
    extend_memory,
    holds_hidden,
    memory_widths,
    trim_memory,
)
from sparing.nn.attention.position_table import PositionTable, sinusoids
from sparing.nn.attention.relative import RelativeAttention, RelativeBias
from sparing.nn.block import TypedModuleList
from sparing.nn.checks import check_at_least, check_counts, check_rates
from sparing.nn.dropout import Dropout
from sparing.nn.head import SoftmaxHead
from sparing.nn.precision import compute_dtype
from sparing.nn.ring import is_static, ring_length
from sparing.nn.size import SizeLimit, scale_width
from sparing.nn.state import forget_lanes, join_states, split_state
from sparing.ops.relative_attention import Bias

PROJECTION_STD = 0.01


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


class TransformerXLAttention(nn.Module):
    """The attention half of a layer."""

    def __init__(self, c: TransformerXLConfig) -> None:
        super().__init__()
        self.memory, self.pre = c.memory, c.norm == "pre"
        self.reach = c.memory if c.same_length else None
        self.attention = RelativeAttention(c.dim, c.heads, c.head_dim, dropout=c.dropout_attention)
        self.norm = nn.LayerNorm(c.dim)
        self.dropout = Dropout(c.dropout)

    def forward(
        self, hidden_BTD: Tensor, state: State, positions_SE: Tensor, bias: Bias
    ) -> tuple[Tensor, State]:
        """Return the stream after attention, and this layer's next state."""
        source_BTD = self.norm(hidden_BTD) if self.pre else hidden_BTD
        if is_static(state):
            mixed_BTD, carried = self.attention.read_ring(
                source_BTD, state, bias, self.memory, self.reach
            )
            out_BTD = hidden_BTD + mixed_BTD
            return out_BTD if self.pre else self.norm(out_BTD), carried
        if holds_hidden(state):
            stored = extend_memory(state, {"memory": self._to_store(hidden_BTD)})
            stored_BSD = stored["memory"]
            entries = self.attention.entries(self.norm(stored_BSD) if self.pre else stored_BSD)
        else:
            stored = entries = extend_memory(state, self.attention.entries(source_BTD))
        mixed_BTD = self.attention(
            source_BTD, entries, positions_SE, bias, self.reach, state.get("seen")
        )
        out_BTD = hidden_BTD + self.dropout(mixed_BTD)
        carried = trim_memory(stored, self.memory, state, hidden_BTD.size(1))
        return out_BTD if self.pre else self.norm(out_BTD), carried

    def _to_store(self, hidden_BTD: Tensor) -> Tensor:
        # After the norm it is used in matrix products only, so their precision is enough.
        return hidden_BTD.to(hidden_BTD.dtype if self.pre else compute_dtype(hidden_BTD))


class TransformerXLFeedForward(nn.Module):
    """The position-wise half of a layer."""

    def __init__(self, c: TransformerXLConfig) -> None:
        super().__init__()
        self.pre = c.norm == "pre"
        self.widen, self.narrow = nn.Linear(c.dim, c.ff_dim), nn.Linear(c.ff_dim, c.dim)
        self.norm = nn.LayerNorm(c.dim)
        self.dropout = Dropout(c.dropout)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        source_BTD = self.norm(hidden_BTD) if self.pre else hidden_BTD
        wide_BTF = self.dropout(torch.relu(self.widen(source_BTD)))
        out_BTD: Tensor = hidden_BTD + self.dropout(self.narrow(wide_BTF))
        return out_BTD if self.pre else self.norm(out_BTD)


class TransformerXLBlock(nn.Module):
    """One layer."""

    def __init__(self, c: TransformerXLConfig) -> None:
        super().__init__()
        self.attend = TransformerXLAttention(c)
        self.feed_forward = TransformerXLFeedForward(c)
        self.bias = None if c.shared_bias else RelativeBias(c.heads, c.head_dim)

    def forward(
        self, hidden_BTD: Tensor, state: State, positions_SE: Tensor, bias: Bias
    ) -> tuple[Tensor, State]:
        """`state` holds this block's tensors only."""
        hidden_BTD, carried = self.attend(hidden_BTD, state, positions_SE, bias)
        return self.feed_forward(hidden_BTD), carried


class TransformerXL(LanguageModel):
    """A Transformer with recurrence over segments and relative positions."""

    head: SoftmaxHead | AdaptiveHead

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
        codes_SD = self._codes(ring_length(memory, chunk)).flip(0)
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
