"""Position-wise layers."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Gelu = Literal["sigmoid", "erf"]


def gelu(x: Tensor, form: Gelu) -> Tensor:
    """GELU; `sigmoid` is the approximation x * sigmoid(1.702 x) that SHA-RNN was trained with."""
    return x * torch.sigmoid(1.702 * x) if form == "sigmoid" else F.gelu(x)


class Boom(nn.Module):
    """Widen, activate, and fold back by summing chunks: no second matrix (arXiv:1911.11423)."""

    def __init__(
        self, dim: int, boom_dim: int, *, dropout: float, form: Gelu = "sigmoid", bias: bool = True
    ) -> None:
        super().__init__()
        if boom_dim % dim:
            raise ValueError(f"boom_dim {boom_dim} must be a multiple of dim {dim}")
        self.dim, self.form = dim, form
        self.widen = nn.Linear(dim, boom_dim, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """Shape is kept."""
        wide_BTF: Tensor = self.dropout(gelu(self.widen(hidden_BTD), self.form))
        return wide_BTF.view(*hidden_BTD.shape[:-1], -1, self.dim).sum(-2)
