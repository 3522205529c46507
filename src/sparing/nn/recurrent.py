"""Recurrent cores with one face: (x_BTD, state) -> (y_BTD, state), state tensors lane first."""

from typing import Literal

import torch
from torch import Tensor, nn

from sparing.ops.gated_scan import gated_scan

CoreKind = Literal["lstm", "gru", "qrnn"]
CoreState = tuple[Tensor, ...]


class LSTMCore(nn.Module):
    """One `nn.LSTM` layer. One layer per call is what cuDNN's persistent kernel asks for."""

    state_names = ("hidden", "cell")

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.cell = nn.LSTM(dim, dim, batch_first=True)

    def forward(self, x_BTD: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        """See the module's docstring."""
        hidden_1BD, cell_1BD = (tensor.unsqueeze(0).contiguous() for tensor in state)
        y_BTD, (hidden_1BD, cell_1BD) = self.cell(x_BTD, (hidden_1BD, cell_1BD))
        return y_BTD, (hidden_1BD.squeeze(0), cell_1BD.squeeze(0))


class GRUCore(nn.Module):
    """One `nn.GRU` layer."""

    state_names = ("hidden",)

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.cell = nn.GRU(dim, dim, batch_first=True)

    def forward(self, x_BTD: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        """See the module's docstring."""
        y_BTD, hidden_1BD = self.cell(x_BTD, state[0].unsqueeze(0).contiguous())
        return y_BTD, (hidden_1BD.squeeze(0),)


class QRNNCore(nn.Module):
    """Quasi-recurrent layer with fo-pooling and a window of two inputs (arXiv:1611.01576)."""

    state_names = ("cell", "input")

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gates = nn.Linear(2 * dim, 3 * dim)

    def forward(self, x_BTD: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        """See the module's docstring."""
        cell_BD, last_BD = state
        earlier_BTD = torch.cat([last_BD.to(x_BTD.dtype)[:, None], x_BTD[:, :-1]], dim=1)
        gates = self.gates(torch.cat([earlier_BTD, x_BTD], dim=-1)).chunk(3, dim=-1)
        candidate_BTD, forget_BTD = torch.tanh(gates[0]), torch.sigmoid(gates[1])
        cells_BTD = gated_scan(forget_BTD, candidate_BTD, cell_BD.to(candidate_BTD.dtype))
        return torch.sigmoid(gates[2]) * cells_BTD, (cells_BTD[:, -1], x_BTD[:, -1])


Core = LSTMCore | GRUCore | QRNNCore
CORES: dict[str, type[Core]] = {"lstm": LSTMCore, "gru": GRUCore, "qrnn": QRNNCore}
