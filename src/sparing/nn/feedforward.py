"""Position-wise layers."""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from sparing.nn.dropout import Dropout

Gelu = Literal["sigmoid", "erf"]
SIGMOID_GELU = 1.702
"""GELU is about x * sigmoid(1.702 x): the form SHA-RNN was trained with."""


class Boom(nn.Module):
    """Widen, activate, and fold back by summing chunks: no second matrix (arXiv:1911.11423)."""

    def __init__(
        self, dim: int, boom_dim: int, *, dropout: float, form: Gelu = "sigmoid", bias: bool = True
    ) -> None:
        super().__init__()
        if boom_dim < 1 or boom_dim % dim:
            raise ValueError(f"boom_dim {boom_dim} must be a multiple of dim {dim}")
        self.dim, self.form = dim, form
        self.widen = nn.Linear(dim, boom_dim, bias=bias)
        self.dropout = Dropout(dropout)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """Shape is kept."""
        wide_BTF: Tensor = self.widen(hidden_BTD)
        if self.form == "erf":
            return self._fold(F.gelu(wide_BTF))
        # x sigmoid(a x) = silu(a x) / a: one fused kernel each way over the widest tensor, and the
        # division waits until it is narrow.
        return self._fold(F.silu(SIGMOID_GELU * wide_BTF)) / SIGMOID_GELU

    def _fold(self, wide_BTF: Tensor) -> Tensor:
        dropped_BTF: Tensor = self.dropout(wide_BTF)
        return dropped_BTF.view(*wide_BTF.shape[:-1], -1, self.dim).sum(-2)


def feed_forward(dim: int, ff_dim: int, *, dropout: float) -> nn.Sequential:
    """The Transformer's own: widen, ReLU, narrow."""
    return nn.Sequential(
        nn.Linear(dim, ff_dim), nn.ReLU(), nn.Dropout(dropout), nn.Linear(ff_dim, dim)
    )
