"""Feed-forward as a residual branch. Axes: B batch, T segment, D dim, F inner width."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparing.nn.blocks.api import Block
from sparing.nn.dropout import Dropout
from sparing.nn.stacked import StackedLinear
from sparing.nn.state import State

Activation = Literal["relu2", "gelu", "relu", "swiglu"]


class FeedForward(Block):
    """Norm, widen, activate, narrow; starts as the identity, for its last matrix is zero."""

    def __init__(
        self, dim: int, ff_dim: int, *, dropout: float = 0.0, activation: Activation = "relu2"
    ) -> None:
        super().__init__()
        self.dim, self.activation = dim, activation
        # SwiGLU widens twice, once for the gate: two thirds of `ff_dim` cost what others do.
        halves = 2 if activation == "swiglu" else 1
        self.widen = StackedLinear(dim, ff_dim, blocks=halves, bias=False)
        self.narrow = nn.Linear(ff_dim, dim, bias=False)
        self.dropout = Dropout(dropout)
        nn.init.normal_(self.widen.weight, std=0.5 * dim**-0.5)
        nn.init.zeros_(self.narrow.weight)

    def forward(self, hidden_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        """See `Block`."""
        wide_BTF = self.widen(F.rms_norm(hidden_BTD, (self.dim,)))
        delta_BTD: Tensor = self.dropout(self.narrow(self._activated(wide_BTF)))
        return delta_BTD, {}

    def _activated(self, wide_BTF: Tensor) -> Tensor:
        if self.activation == "swiglu":
            gate_BTF, open_BTF = wide_BTF.chunk(2, dim=-1)
            return F.silu(gate_BTF) * open_BTF
        if self.activation == "gelu":
            return F.gelu(wide_BTF)
        positive_BTF = torch.relu(wide_BTF)
        return positive_BTF.square() if self.activation == "relu2" else positive_BTF

    def compile_parts(self) -> None:
        """All of it."""
        self.compile()

    def flops_per_token(self) -> float:
        """Two per multiply-add."""
        return 2.0 * (self.widen.weight.numel() + self.narrow.weight.numel())
