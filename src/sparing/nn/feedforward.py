"""Feed-forward layers: Boom, the Transformer's, and their residual blocks.

Axes: B batch, T segment, D dim, F inner width.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparing.nn.block import Block, BlockConfig, ResidualConfig, Role
from sparing.nn.checks import check_at_least
from sparing.nn.dropout import Dropout
from sparing.nn.linear import Linear, StackedLinear
from sparing.nn.size import SizeLimit, scale_width
from sparing.nn.state import State

Gelu = Literal["sigmoid", "erf"]
SIGMOID_GELU = 1.702
"""GELU is about x * sigmoid(1.702 x): the form SHA-RNN was trained with."""


class Boom(nn.Module):
    """Widen, activate, and reduce by summing chunks: no second matrix (arXiv:1911.11423)."""

    def __init__(
        self, dim: int, boom_dim: int, *, dropout: float, form: Gelu = "sigmoid", bias: bool = True
    ) -> None:
        super().__init__()
        if boom_dim < 1 or boom_dim % dim:
            raise ValueError(f"boom_dim {boom_dim} must be a multiple of dim {dim}")
        self.dim, self.form = dim, form
        self.widen = Linear(dim, boom_dim, bias=bias)
        self.dropout = Dropout(dropout)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """Shape is kept."""
        wide_BTF: Tensor = self.widen(hidden_BTD)
        if self.form == "erf":
            return self._fold(F.gelu(wide_BTF))
        # x sigmoid(a x) = silu(a x) / a: one fused kernel each way over the widest tensor; the
        # division comes last, when it is narrow.
        return self._fold(F.silu(SIGMOID_GELU * wide_BTF)) / SIGMOID_GELU

    def _fold(self, wide_BTF: Tensor) -> Tensor:
        dropped_BTF: Tensor = self.dropout(wide_BTF)
        return dropped_BTF.view(*wide_BTF.shape[:-1], -1, self.dim).sum(-2)


def feed_forward(dim: int, ff_dim: int, *, dropout: float) -> nn.Sequential:
    """Return the Transformer's layer: widen, ReLU, narrow."""
    return nn.Sequential(Linear(dim, ff_dim), nn.ReLU(), Dropout(dropout), Linear(ff_dim, dim))


Activation = Literal["relu2", "gelu", "relu", "swiglu"]


class FeedForwardBlock(Block):
    """Norm, widen, activate, narrow; starts as the identity, as its last matrix is zero."""

    def __init__(
        self, dim: int, ff_dim: int, *, dropout: float = 0.0, activation: Activation = "relu2"
    ) -> None:
        super().__init__()
        self.dim, self.activation = dim, activation
        # SwiGLU widens twice, once for the gate: with two thirds of `ff_dim` it costs the same.
        halves = 2 if activation == "swiglu" else 1
        self.widen = StackedLinear(dim, ff_dim, blocks=halves, bias=False)
        self.narrow = Linear(ff_dim, dim, bias=False)
        self.dropout = Dropout(dropout)
        nn.init.normal_(self.widen.weight, std=0.5 * dim**-0.5)
        nn.init.zeros_(self.narrow.weight)

    def forward(self, hidden_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        """See `Block`."""
        wide_BTF = self.widen(F.rms_norm(hidden_BTD, (self.dim,)))
        delta_BTD: Tensor = self.dropout(self.narrow(self._activate(wide_BTF)))
        return delta_BTD, {}

    def _activate(self, wide_BTF: Tensor) -> Tensor:
        if self.activation == "swiglu":
            gate_BTF, open_BTF = wide_BTF.chunk(2, dim=-1)
            return F.silu(gate_BTF) * open_BTF
        if self.activation == "gelu":
            return F.gelu(wide_BTF)
        if not torch.is_grad_enabled():
            # In place: memory that is new for every product costs more than the sums.
            return wide_BTF.relu_() if self.activation == "relu" else wide_BTF.relu_().square_()
        positive_BTF = torch.relu(wide_BTF)
        return positive_BTF.square() if self.activation == "relu2" else positive_BTF

    def compile_parts(self) -> None:
        """Compile the whole block."""
        self.compile()

    def flops_per_token(self) -> float:
        """Count two per multiply-add."""
        return 2.0 * (self.widen.weight.numel() + self.narrow.weight.numel())


class BoomBlock(Block):
    """Norm, then Boom."""

    def __init__(self, dim: int, boom_dim: int, *, dropout: float) -> None:
        super().__init__()
        self.dim = dim
        self.norm = nn.LayerNorm(dim)
        self.boom = Boom(dim, boom_dim, dropout=dropout)
        self.dropout = Dropout(dropout)
        nn.init.normal_(self.boom.widen.weight, std=0.5 * dim**-0.5)
        nn.init.zeros_(self.boom.widen.bias)

    def forward(self, hidden_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        """See `Block`."""
        return self.dropout(self.boom(self.norm(hidden_BTD))), {}

    def compile_parts(self) -> None:
        """Compile the whole block."""
        self.compile(dynamic=True)

    def flops_per_token(self) -> float:
        """Count its only matrix."""
        return 2.0 * self.boom.widen.weight.numel()


@dataclass(frozen=True, kw_only=True, slots=True)
class FeedForwardConfig(BlockConfig):
    """Settings of the feed-forward block."""

    letter: ClassVar[str] = "f"
    title: ClassVar[str] = "feed-forward"
    role: ClassVar[Role] = "dense"

    dim: int = 2048
    """Inner width."""
    activation: Activation = "relu2"
    """Applied to the widened vectors."""

    def __post_init__(self) -> None:
        check_at_least(1, dim=self.dim)

    def build(self, residual: ResidualConfig) -> Block:
        """See `BlockConfig`."""
        return FeedForwardBlock(
            residual.dim, self.dim, dropout=residual.dropout, activation=self.activation
        )

    def smaller(self, scale: Fraction, limit: SizeLimit) -> Self:
        """See `BlockConfig`."""
        return replace(self, dim=scale_width(self.dim, scale))


@dataclass(frozen=True, kw_only=True, slots=True)
class BoomConfig(BlockConfig):
    """Settings of the Boom block."""

    letter: ClassVar[str] = "b"
    title: ClassVar[str] = "Boom"
    role: ClassVar[Role] = "dense"

    dim: int | None = None
    """Inner width, a multiple of the stream's; none: four times the stream's."""

    def build(self, residual: ResidualConfig) -> Block:
        """See `BlockConfig`."""
        width = 4 * residual.dim if self.dim is None else self.dim
        return BoomBlock(residual.dim, width, dropout=residual.dropout)

    def smaller(self, scale: Fraction, limit: SizeLimit) -> Self:
        """See `BlockConfig`."""
        return replace(self, dim=self.dim and scale_width(self.dim, scale))
