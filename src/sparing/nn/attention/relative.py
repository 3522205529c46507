"""Relative multi-head attention of Transformer-XL (arXiv:1901.02860) and its residual block.

Axes: B batch, T segment, M memory, S = M + T keys, D dim, H heads, K head width, E = H x K.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from sparing.nn.block import Block, BlockConfig, ResidualConfig, Role
from sparing.nn.checks import check_at_least, check_counts, check_rates
from sparing.nn.dropout import Dropout
from sparing.nn.kv_buffer import append, newest
from sparing.nn.precision import compute_dtype
from sparing.nn.size import SizeLimit, scale_width
from sparing.nn.state import State, counted, emptied
from sparing.ops.relative_attention import Bias, relative_attention


class RelativeAttention(nn.Module):
    """Keys are matched by content and by distance; no projection has a bias."""

    def __init__(self, dim: int, heads: int, head_dim: int, *, dropout: float) -> None:
        super().__init__()
        self.head_dim, width = head_dim, heads * head_dim
        self.query = nn.Linear(dim, width, bias=False)
        self.key = nn.Linear(dim, width, bias=False)
        self.value = nn.Linear(dim, width, bias=False)
        self.position = nn.Linear(dim, width, bias=False)
        self.output = nn.Linear(width, dim, bias=False)
        self.dropout_rate = dropout

    def entries(self, source_BSD: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (B, S, E) of stored vectors."""
        return self.key(source_BSD), self.value(source_BSD)

    def forward(  # noqa: PLR0913  the last two are seldom given
        self,
        source_BTD: Tensor,
        entries: tuple[Tensor, Tensor],
        positions_SE: Tensor,
        bias: Bias,
        reach: int | None = None,
        seen_B: Tensor | None = None,
    ) -> Tensor:
        """Attend from `source`; the last T entries are its own positions."""
        keys_BSE, values_BSE = entries
        mixed_BTHK = relative_attention(
            self._by_head(self.query(source_BTD)),
            self._by_head(keys_BSE),
            self._by_head(values_BSE),
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
        """Both, by name."""
        return Bias(self.content, self.position)


def sinusoids(distance_S: Tensor, dim: int) -> Tensor:
    """[sin(d w), cos(d w)] with w_m = 10000^(-2m/dim): halves side by side, not interleaved."""
    exponent = torch.arange(0, dim, 2, device=distance_S.device, dtype=distance_S.dtype) / dim
    angle_SD = distance_S[:, None] / 10000**exponent
    return torch.cat([angle_SD.sin(), angle_SD.cos()], dim=-1)


Project = Callable[[int], list[Tensor]]
"""Number of rows -> that many rows of every layer, the last of them distance 0."""


class PositionTable:
    """Projected sinusoids, kept while the weights stand still.

    Writing token by token would otherwise project thousands of rows in every layer for each token.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._rows: list[Tensor] = []
        self._stamp: list[tuple[Tensor, Any]] = []

    def rows(
        self,
        keys: int,
        most: int,
        weights: Sequence[Tensor],
        project: Project,
    ) -> list[Tensor]:
        """The newest `keys` rows of every layer; at most `most` will ever be asked for."""
        stamp = [(weight, _version(weight)) for weight in weights]
        if not self._fits(stamp) or self._rows[0].size(0) < keys:
            # Memory that still grows asks for one more row each time.
            self._rows = project(max(keys, min(most, 1 << (keys - 1).bit_length())))
            self._stamp = stamp
        return [rows_XE[rows_XE.size(0) - keys :] for rows_XE in self._rows]

    def _fits(self, stamp: Sequence[tuple[Tensor, Any]]) -> bool:
        return len(stamp) == len(self._stamp) and all(
            one is other and version == seen
            for (one, version), (other, seen) in zip(stamp, self._stamp, strict=True)
        )


def _version(weight: Tensor) -> Any:
    """Changes whenever torch writes to the tensor, moves it or would compute in another dtype."""
    return weight._version, weight.data_ptr(), weight.device, compute_dtype(weight)


class RelativeBlock(Block):
    """Heads over the segment and the block's own inputs before it.

    Memory holds those inputs; where nothing is learnt, their keys and values, which no update can
    make stale.
    """

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
        # The branch starts as the identity, so that a deep stack starts as a shallow one.
        nn.init.zeros_(self.attention.output.weight)

    def initial_state(self, batch: int, like: Tensor) -> State:
        """Empty memory."""
        return {name: like.new_zeros(batch, 0, width) for name, width in self._widths().items()}

    def forward(self, hidden_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        """See `Block`. The state's own kind decides what memory holds."""
        if "memory" in state:
            stored_BSD = append(state["memory"], hidden_BTD)
            normed_BSD = self.norm(stored_BSD)
            source_BTD = normed_BSD[:, -hidden_BTD.size(1) :]
            entries, carried = self.attention.entries(normed_BSD), {"memory": stored_BSD}
        else:
            source_BTD = self.norm(hidden_BTD)
            fresh = zip(("keys", "values"), self.attention.entries(source_BTD), strict=True)
            carried = {name: append(state[name], new_BTE) for name, new_BTE in fresh}
            entries = carried["keys"], carried["values"]
        positions_SE = self._positions(entries[0].size(1), hidden_BTD.size(1), state)
        mixed_BTD = self.attention(
            source_BTD, entries, positions_SE, self.bias(), seen_B=state.get("seen")
        )
        kept = {name: self._recent(tensor).detach() for name, tensor in carried.items()}
        return self.dropout(mixed_BTD), kept | counted(state, hidden_BTD.size(1))

    def reset_lanes(self, state: State, lanes_B: Tensor) -> State:
        """Entries stay where they are; those of the chosen lanes no longer exist."""
        return emptied(state, lanes_B)

    @torch.no_grad()
    def idle(self, hidden_BTD: Tensor, state: State) -> State:
        """The memory is the stream itself: it is written without any work."""
        if "memory" not in state:
            return super().idle(hidden_BTD, state)
        stored_BSD = append(state["memory"], hidden_BTD)
        return {"memory": self._recent(stored_BSD)} | counted(state, hidden_BTD.size(1))

    def train(self, mode: bool = True) -> "RelativeBlock":
        """Switch between training and evaluation; projected positions are forgotten."""
        self._table.clear()
        super().train(mode)
        return self

    def flops_per_token(self) -> float:
        """Keys, values and positions cached."""
        return 2.0 * (4 * self.dim + 3 * self.memory) * self.width

    def state_numbers(self) -> int:
        """As `initial_state` would make it now."""
        return self.memory * sum(self._widths().values())

    def _widths(self) -> dict[str, int]:
        if torch.is_grad_enabled():
            return {"memory": self.dim}
        return {"keys": self.width, "values": self.width}

    def _positions(self, keys: int, newest: int, state: State) -> Tensor:
        """Projected codes of the distances keys - 1 ... 0."""
        learning = torch.is_grad_enabled() or self.training
        if "memory" in state or learning or torch.compiler.is_compiling():
            return self._project(keys)[0]
        weights = [self.attention.position.weight]
        return self._table.rows(keys, self.memory + newest, weights, self._project)[0]

    def _project(self, keys: int) -> list[Tensor]:
        return [self.attention.position(self._sinusoids(keys))]

    def _sinusoids(self, keys: int) -> Tensor:
        """Kept from step to step: by themselves they take many launches."""
        weight, kept = self.attention.position.weight, self._codes_SD
        if torch.compiler.is_compiling():
            return self._fresh_sinusoids(keys)
        alike = kept is not None and (kept.dtype, kept.device) == (weight.dtype, weight.device)
        if kept is None or not alike or kept.size(0) < keys:
            kept = self._codes_SD = self._fresh_sinusoids(keys)
        return kept[kept.size(0) - keys :]

    def _fresh_sinusoids(self, keys: int) -> Tensor:
        weight = self.attention.position.weight
        precise = torch.promote_types(weight.dtype, torch.float32)
        distance_S = torch.arange(keys - 1, -1, -1, device=weight.device, dtype=precise)
        return sinusoids(distance_S, self.dim).to(weight.dtype)

    def _recent(self, stored_BSX: Tensor) -> Tensor:
        # A copy: a view would keep all of it, and be compiled for by itself.
        return newest(stored_BSX, self.memory).contiguous()


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
        check_at_least(1, heads=self.heads, head_dim=self.head_dim)
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
