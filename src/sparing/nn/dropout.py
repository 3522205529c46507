"""Dropout as a layer."""

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
        """The rate, for `print(model)`."""
        return f"{self.rate}"
