"""Linear layers: several in one product, weight-normalised ones, and results cut into heads."""

import torch
from torch import Tensor, nn

from sparing.ops.linear import linear


class Linear(nn.Linear):
    """torch's, with faster products where there are some."""

    def forward(self, input: Tensor) -> Tensor:
        """Shape is kept, but for the last axis."""
        return linear(input, self.weight, self.bias)


class StackedLinear(Linear):
    """`blocks` matrices stacked in one weight; Muon reads `stacked_blocks`."""

    def __init__(self, input_dim: int, dim: int, *, blocks: int, bias: bool = True) -> None:
        super().__init__(input_dim, blocks * dim, bias=bias)
        self.stacked_blocks = blocks


class Matrix(nn.Module):
    """A weight of shape (rows, columns), initially orthogonal.

    With `normed`, row r is gain_r times a vector of length 1. Gains start as the rows' lengths, so
    that the initial matrix is the same either way.
    """

    def __init__(self, rows: int, columns: int, *, normed: bool, blocks: int = 1) -> None:
        super().__init__()
        self.stacked_blocks = blocks
        self.weight = nn.Parameter(torch.empty(rows, columns))
        self.gain = nn.Parameter(torch.empty(rows)) if normed else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Make each block orthogonal."""
        for block in self.weight.chunk(self.stacked_blocks):
            nn.init.orthogonal_(block)
        if self.gain is not None:
            self.gain.copy_(torch.linalg.vector_norm(self.weight, dim=1))

    def forward(self) -> Tensor:
        """Return the matrix."""
        if self.gain is None:
            return self.weight
        scale: Tensor = self.gain / torch.linalg.vector_norm(self.weight, dim=1)
        return self.weight * scale[:, None]

    @torch.no_grad()
    def collapse(self) -> None:
        """Fold the gains into the weights."""
        folded: Tensor = self()
        self.weight.copy_(folded)
        self.gain = None


def split_heads(x_BSD: Tensor, head_dim: int) -> Tensor:
    """Return the vectors of every head, (B, heads, S, head_dim)."""
    return x_BSD.view(*x_BSD.shape[:2], -1, head_dim).transpose(1, 2)
