"""Relative multi-head attention of Transformer-XL (arXiv:1901.02860) and its residual block.

Axes: B batch, T segment, M memory, S = M + T keys, D dim, H heads, K head width, E = H x K.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from sparing.nn.attention.memory import (
    copy_trimmed_memory,
    empty_memory,
    extend_memory,
    holds_hidden,
    memory_widths,
)
from sparing.nn.attention.position_table import (
    PositionTable,
    RingCodes,
    sinusoids,
    whole_blocks,
)
from sparing.nn.block import Block, BlockConfig, ResidualConfig, Role
from sparing.nn.checks import check_at_least, check_counts, check_rates
from sparing.nn.dropout import Dropout
from sparing.nn.ring import (
    empty_head_rings,
    head_rings,
    is_static,
    outside_memory,
    ring_distances,
    ring_length,
    write_head_rings,
)
from sparing.nn.size import SizeLimit, scale_width
from sparing.nn.state import State, forget_lanes
from sparing.ops.relative_attention import Bias, relative_attention
from sparing.ops.relative_attention.ring import ring_relative_attention


class RelativeAttention(nn.Module):
    """Attention that matches keys by content and by distance; no projection has a bias."""

    codes_RE: Tensor
    """Projected codes of the distances in the newest static state, for a graph that is traced."""

    def __init__(self, dim: int, heads: int, head_dim: int, *, dropout: float) -> None:
        super().__init__()
        self.head_dim, width = head_dim, heads * head_dim
        self.query = nn.Linear(dim, width, bias=False)
        self.key = nn.Linear(dim, width, bias=False)
        self.value = nn.Linear(dim, width, bias=False)
        self.position = nn.Linear(dim, width, bias=False)
        self.output = nn.Linear(width, dim, bias=False)
        self.dropout_rate = dropout
        self.register_buffer("codes_RE", torch.empty(0, width), persistent=False)
        self._ring_codes = RingCodes()

    @torch.no_grad()
    def static_state(self, codes_SD: Tensor, memory: int, batch: int, *, chunk: int) -> State:
        """Return empty rings; `codes` are of the distances 0, 1, ... of whole blocks of slots."""
        slots, heads = ring_length(memory, chunk), self.query.out_features // self.head_dim
        self._ring_codes.extend(codes_SD)
        self.codes_RE = self._ring_codes.rows(slots, self.position)
        return empty_head_rings([slots] * heads, self.head_dim, batch, codes_SD)

    def entries(self, source_BSD: Tensor) -> State:
        """Project `keys` and `values` (B, S, E)."""
        return {"keys": self.key(source_BSD), "values": self.value(source_BSD)}

    def forward(  # noqa: PLR0913  the last two are seldom given
        self,
        source_BTD: Tensor,
        entries: State,
        positions_SE: Tensor,
        bias: Bias,
        reach: int | None = None,
        seen_B: Tensor | None = None,
    ) -> Tensor:
        """Attend from `source`, whose own positions are the last T of `entries`."""
        mixed_BTHK = relative_attention(
            self._by_head(self.query(source_BTD)),
            self._by_head(entries["keys"]),
            self._by_head(entries["values"]),
            self._by_head(positions_SE),
            bias,
            reach=reach,
            seen_B=seen_B,
            dropout=self.dropout_rate if self.training else 0.0,
        )
        out_BTD: Tensor = self.output(mixed_BTHK.flatten(-2))
        return out_BTD

    def read_ring(
        self, source_BTD: Tensor, state: State, bias: Bias, memory: int, reach: int | None = None
    ) -> tuple[Tensor, State]:
        """As `forward`, with a memory of fixed size; return its next state as well."""
        seen_B, segment = state["seen"], source_BTD.size(1)
        fresh = self.entries(source_BTD)
        keys_BTHK, values_BTHK = self._by_head(fresh["keys"]), self._by_head(fresh["values"])
        rings = write_head_rings(state, keys_BTHK, values_BTHK)
        ((_, keys_BHRK, values_BHRK),) = head_rings(rings)
        distance_BTR = ring_distances(seen_B, segment, keys_BHRK.size(2))
        unseen_BTR = outside_memory(distance_BTR, seen_B, memory)
        if reach is not None:
            unseen_BTR = unseen_BTR | (distance_BTR >= max(1, reach))
        mixed_BTHK = ring_relative_attention(
            self._by_head(self.query(source_BTD)),
            keys_BHRK,
            values_BHRK,
            self._by_head(self._codes_of_ring(keys_BHRK.size(2))),
            bias,
            distance_BTR.masked_fill(unseen_BTR, -1),
        )
        return self.output(mixed_BTHK.flatten(-2)), rings | {"seen": seen_B + segment}

    def _codes_of_ring(self, slots: int) -> Tensor:
        # A graph holds what it was traced with.
        if torch.compiler.is_compiling():
            return self.codes_RE[:slots]
        return self._ring_codes.rows(slots, self.position)

    def _by_head(self, tensor_XE: Tensor) -> Tensor:
        return tensor_XE.view(*tensor_XE.shape[:-1], -1, self.head_dim)


class RelativeBias(nn.Module):
    """The two learned queries of `relative_attention`."""

    parameter_role: ClassVar[str] = "vector"
    """For optimizers: a row per head is a stack of vectors, not a matrix between layers."""

    def __init__(self, heads: int, head_dim: int) -> None:
        super().__init__()
        self.content = nn.Parameter(torch.zeros(heads, head_dim))
        self.position = nn.Parameter(torch.zeros(heads, head_dim))

    def forward(self) -> Bias:
        """Return both."""
        return Bias(self.content, self.position)


class RelativeBlock(Block):
    """Transformer-XL attention over the segment and the block's own inputs before it."""

    def __init__(  # noqa: PLR0913  half of them keyword-only
        self,
        dim: int,
        heads: int,
        head_dim: int,
        *,
        memory: int,
        dropout: float,
        dropout_attention: float = 0.0,
    ) -> None:
        super().__init__()
        if dim % 2:
            raise ValueError(f"dim {dim} must be even: half sines, half cosines")
        self.dim, self.width, self.memory = dim, heads * head_dim, memory
        self.norm = nn.LayerNorm(dim)
        self.attention = RelativeAttention(dim, heads, head_dim, dropout=dropout_attention)
        self.bias = RelativeBias(heads, head_dim)
        self.dropout = Dropout(dropout)
        self._table = PositionTable()
        self._codes_SD: Tensor | None = None
        for layer in (self.attention.query, self.attention.key, self.attention.value):
            nn.init.normal_(layer.weight, std=dim**-0.5)
        nn.init.normal_(self.attention.position.weight, std=dim**-0.5)
        # The block starts as the identity, so that a deep stack starts as a shallow one.
        nn.init.zeros_(self.attention.output.weight)

    def initial_state(self, batch: int, like: Tensor, *, inference: bool = False) -> State:
        """Return an empty memory."""
        return empty_memory(self._widths(inference), batch, like)

    def static_state(self, batch: int, like: Tensor, *, chunk: int) -> State:
        """See `Block`."""
        codes_SD = self._compute_sinusoids(whole_blocks(ring_length(self.memory, chunk))).flip(0)
        return self.attention.static_state(codes_SD, self.memory, batch, chunk=chunk)

    def forward(self, hidden_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        """See `Block`."""
        if is_static(state):
            return self.attention.read_ring(self.norm(hidden_BTD), state, self.bias(), self.memory)
        segment = hidden_BTD.size(1)
        if holds_hidden(state):
            stored = extend_memory(state, {"memory": hidden_BTD})
            normed_BSD = self.norm(stored["memory"])
            source_BTD = normed_BSD[:, -segment:]
            entries = self.attention.entries(normed_BSD)
        else:
            source_BTD = self.norm(hidden_BTD)
            stored = entries = extend_memory(state, self.attention.entries(source_BTD))
        positions_SE = self._positions(entries["keys"].size(1), segment, state)
        mixed_BTD = self.attention(
            source_BTD, entries, positions_SE, self.bias(), seen_B=state.get("seen")
        )
        return self.dropout(mixed_BTD), copy_trimmed_memory(stored, self.memory, state, segment)

    def reset_lanes(self, state: State, lanes_B: Tensor) -> State:
        """Mark the selected lanes' entries as missing; nothing is written."""
        return forget_lanes(state, lanes_B)

    @torch.no_grad()
    def skip_step(self, hidden_BTD: Tensor, state: State) -> State:
        """See `Block`. Hidden states are stored without any computation."""
        if not holds_hidden(state):
            return super().skip_step(hidden_BTD, state)
        stored = extend_memory(state, {"memory": hidden_BTD})
        return copy_trimmed_memory(stored, self.memory, state, hidden_BTD.size(1))

    def train(self, mode: bool = True) -> "RelativeBlock":
        """Switch between training and evaluation, and drop the projected positions."""
        self._table.clear()
        super().train(mode)
        return self

    def flops_per_token(self) -> float:
        """See `Block`; keys, values and positions are cached."""
        return 2.0 * (4 * self.dim + 3 * self.memory) * self.width

    def memory_length(self) -> int:
        """See `Block`."""
        return self.memory

    def state_numbers(self, *, inference: bool = False) -> int:
        """A full memory."""
        return self.memory * sum(self._widths(inference).values())

    def _widths(self, inference: bool) -> dict[str, int]:
        return memory_widths("auto", self.dim, self.width, inference=inference)

    def _positions(self, keys: int, segment: int, state: State) -> Tensor:
        """Return the projected codes of the distances keys - 1 ... 0."""
        if holds_hidden(state) or self.training or torch.compiler.is_compiling():
            return self._project(keys)[0]
        weights = [self.attention.position.weight]
        return self._table.rows(keys, self.memory + segment, weights, self._project)[0]

    def _project(self, keys: int) -> list[Tensor]:
        return [self.attention.position(self._sinusoids(keys))]

    def _sinusoids(self, keys: int) -> Tensor:
        """Return sinusoids, cached from step to step: computing them takes many launches."""
        weight, cached = self.attention.position.weight, self._codes_SD
        if torch.compiler.is_compiling():
            return self._compute_sinusoids(keys)
        fits = cached is not None and (cached.dtype, cached.device) == (weight.dtype, weight.device)
        if cached is None or not fits or cached.size(0) < keys:
            cached = self._codes_SD = self._compute_sinusoids(keys)
        return cached[cached.size(0) - keys :]

    def _compute_sinusoids(self, keys: int) -> Tensor:
        weight = self.attention.position.weight
        precise = torch.promote_types(weight.dtype, torch.float32)
        distance_S = torch.arange(keys - 1, -1, -1, device=weight.device, dtype=precise)
        return sinusoids(distance_S, self.dim).to(weight.dtype)


@dataclass(frozen=True, kw_only=True, slots=True)
class RelativeAttentionConfig(BlockConfig):
    """Settings of Transformer-XL attention."""

    letter: ClassVar[str] = "x"
    title: ClassVar[str] = "Transformer-XL attention"
    role: ClassVar[Role] = "attention"

    heads: int = 8
    """Number of heads."""
    head_dim: int = 64
    """Width of a head."""
    memory: int = 512
    """Positions before the segment that it attends to."""
    dropout: float = 0.0
    """On the attention weights."""

    def __post_init__(self) -> None:
        check_counts(heads=self.heads)
        check_at_least(1, head_dim=self.head_dim)
        check_at_least(0, memory=self.memory)
        check_rates(dropout=self.dropout)

    def build(self, residual: ResidualConfig) -> Block:
        """See `BlockConfig`."""
        return RelativeBlock(
            residual.dim,
            self.heads,
            self.head_dim,
            memory=self.memory,
            dropout=residual.dropout,
            dropout_attention=self.dropout,
        )

    def smaller(self, scale: Fraction, limit: SizeLimit) -> Self:
        """See `BlockConfig`."""
        head_dim = scale_width(self.head_dim, scale)
        return replace(self, head_dim=head_dim, memory=min(self.memory, limit.memory))
