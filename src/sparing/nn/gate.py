"""Learned vectors that scale each channel, and the over-parameterised one of SHA-RNN."""

from typing import Literal

import torch
from torch import Tensor, nn

from sparing.nn.stacked import StackedLinear

GateKind = Literal["overparam", "paper", "vector"]


class SigmoidGate(nn.Module):
    """A vector of sigmoids, all one half at the start."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.logit = nn.Parameter(torch.zeros(dim))

    def forward(self) -> Tensor:
        """The gate, shape (D,)."""
        return torch.sigmoid(self.logit)


class OverparamGate(nn.Module):
    """sigmoid(f) * tanh(c) with [c; f] = W x + b: a whole matrix for one constant vector.

    As coded, x = sigmoid(logit) and the layer has a bias; `as_printed` is the paper's formula,
    which shows neither (arXiv:1911.11423, section 6.4). Its value depends on parameters alone, so
    it collapses to a vector once training is over.
    """

    def __init__(self, dim: int, *, as_printed: bool = False) -> None:
        super().__init__()
        self.as_printed = as_printed
        self.logit = nn.Parameter(torch.zeros(dim))
        self.mix = StackedLinear(dim, dim, blocks=2, bias=not as_printed)
        if as_printed:
            # Without the inner sigmoid a zero vector would be stuck: its product has no gradient
            # towards the matrix.
            nn.init.ones_(self.logit)

    def forward(self) -> Tensor:
        """The gate, shape (D,)."""
        inner = self.logit if self.as_printed else torch.sigmoid(self.logit)
        candidate, forget = self.mix(inner).chunk(2)
        return torch.sigmoid(forget) * torch.tanh(candidate)


class VectorGate(nn.Module):
    """A plain learned vector: what the other kinds collapse to."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.zeros(dim))

    def forward(self) -> Tensor:
        """The gate, shape (D,)."""
        return self.value


ValueGate = OverparamGate | VectorGate


def value_gate(kind: GateKind, dim: int) -> ValueGate:
    """Build the gate on the attention's values."""
    if kind == "vector":
        return VectorGate(dim)
    return OverparamGate(dim, as_printed=kind == "paper")


@torch.no_grad()
def collapsed(gate: ValueGate) -> VectorGate:
    """The vector a gate stands for."""
    value = gate()
    vector = VectorGate(value.numel()).to(value.device, value.dtype)
    vector.value.copy_(value)
    return vector
