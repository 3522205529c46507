"""Dropout layers: of single numbers, of channels for a whole segment, of words.

Axes: B batch, T segment, D width, V vocabulary.
"""

import torch
from torch import Tensor, nn

from sparing.ops.dropout import dropout


class Dropout(nn.Module):
    """Zero each number with probability `rate` while training, and scale up the rest."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"a dropout rate must be at least 0 and below 1, not {rate}")
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Shape is kept."""
        return dropout(x, self.rate if self.training else 0.0)

    def extra_repr(self) -> str:
        """Show the rate in `print(model)`."""
        return f"{self.rate}"


class LockedDropout(nn.Module):
    """Drops channels of a lane for a whole segment (variational dropout, arXiv:1512.05287)."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Shape is kept; in evaluation the input itself."""
        if not self.training or self.rate == 0:
            return x_BTD
        return x_BTD * dropout_mask(x_BTD.new_empty(x_BTD.size(0), 1, x_BTD.size(2)), self.rate)


class RowDropout(nn.Module):
    """Drops rows of an embedding: a dropped word is zero everywhere in the segment."""

    def __init__(self, vocab_size: int, rate: float) -> None:
        super().__init__()
        self.vocab_size, self.rate = vocab_size, rate

    def forward(self, embedded_BTD: Tensor, tokens_BT: Tensor) -> Tensor:
        """Scale the vectors looked up for `tokens`; the table itself is not copied."""
        if not self.training or self.rate == 0:
            return embedded_BTD
        mask_V = dropout_mask(embedded_BTD.new_empty(self.vocab_size), self.rate)
        return embedded_BTD * mask_V[tokens_BT].unsqueeze(-1)


@torch.no_grad()
def dropout_mask(out: Tensor, rate: float) -> Tensor:
    """Fill `out` with 0 (at this rate) and 1 / (1 - rate), so that the mean is 1."""
    return out.bernoulli_(1 - rate).div_(1 - rate)
