"""Relative multi-head attention of Transformer-XL (arXiv:1901.02860) and its residual block.

Axes: B batch, T segment, M memory, S = M + T keys, D dim, H heads, K head width, E = H x K.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from sparing.nn.attention.memory import (
    copy_trimmed_memory,
    empty_memory,
    extend_memory,
    holds_hidden,
    memory_widths,
)
from sparing.nn.block import Block, BlockConfig, ResidualConfig, Role
from sparing.nn.checks import check_at_least, check_counts, check_rates
from sparing.nn.dropout import Dropout
from sparing.nn.precision import compute_dtype
from sparing.nn.size import SizeLimit, scale_width
from sparing.nn.state import State, forget_lanes
from sparing.ops.relative_attention import Bias, relative_attention


class RelativeAttention(nn.Module):
    """Attention that matches keys by content and by distance; no projection has a bias."""

    def __init__(self, dim: int, heads: int, head_dim: int, *, dropout: float) -> None:
        super().__init__()
        self.head_dim, width = head_dim, heads * head_dim
        self.query = nn.Linear(dim, width, bias=False)
        self.key = nn.Linear(dim, width, bias=False)
        self.value = nn.Linear(dim, width, bias=False)
        self.position = nn.Linear(dim, width, bias=False)
        self.output = nn.Linear(width, dim, bias=False)
        self.dropout_rate = dropout

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


def sinusoids(distance_S: Tensor, dim: int) -> Tensor:
    """Return [sin(d w), cos(d w)], w_m = 10000^(-2m/dim), as two halves, not interleaved."""
    exponent = torch.arange(0, dim, 2, device=distance_S.device, dtype=distance_S.dtype) / dim
    angle_SD = distance_S[:, None] / 10000**exponent
    return torch.cat([angle_SD.sin(), angle_SD.cos()], dim=-1)


Project = Callable[[int], list[Tensor]]
"""Number of rows -> that many rows for every layer, the last of them for distance 0."""


class PositionTable:
    """A cache of projected sinusoids that is valid as long as the weights do not change.

    Without it, every generated token would project thousands of rows in every layer.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Drop the cached rows."""
        self._rows: list[Tensor] = []
        self._stamp: list[tuple[Tensor, Any]] = []

    def rows(
        self, keys: int, limit: int, weights: Sequence[Tensor], project: Project
    ) -> list[Tensor]:
        """Return the newest `keys` rows of every layer; `limit` is the most that are ever needed.

        Cached rows have no gradient. Where the weights need one, the rows are projected again, and
        the cache is dropped: fused optimizers change weights without a trace.
        """
        if torch.is_grad_enabled() and any(weight.requires_grad for weight in weights):
            self.clear()
            return project(keys)
        stamp = [(weight, _version(weight)) for weight in weights]
        if not self._fits(stamp) or self._rows[0].size(0) < keys:
            # More than needed, because a growing memory needs one more row each time.
            self._rows = project(max(keys, min(limit, 1 << (keys - 1).bit_length())))
            self._stamp = stamp
        return [rows_XE[rows_XE.size(0) - keys :] for rows_XE in self._rows]

    def _fits(self, stamp: Sequence[tuple[Tensor, Any]]) -> bool:
        return len(stamp) == len(self._stamp) and all(
            one is other and version == seen
            for (one, version), (other, seen) in zip(stamp, self._stamp, strict=True)
        )


def _version(weight: Tensor) -> Any:
    """Return a value that changes when torch writes to the tensor, moves it or recasts it."""
    return weight._version, weight.data_ptr(), weight.device, compute_dtype(weight)


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

    def forward(self, hidden_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        """See `Block`."""
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
