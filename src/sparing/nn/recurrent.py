"""LSTM, GRU and QRNN cores with one interface.

A core maps inputs (B, T, D) and a state to outputs (B, T, D) and the next state.
Axes: B batch, T segment, D dim.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from sparing.nn.linear import StackedLinear
from sparing.nn.precision import compute_dtype
from sparing.ops.dropout import dropout
from sparing.ops.fo_pooling import fo_pooling
from sparing.ops.linear import linear

CoreKind = Literal["lstm", "gru", "qrnn"]
CoreState = tuple[Tensor, ...]


class LSTMCore(nn.Module):
    """One `nn.LSTM` layer; cuDNN's persistent kernel needs one layer per call.

    `weight_drop` zeroes that share of the hidden-to-hidden weights in training, the same ones for
    every position and lane of a segment (DropConnect, arXiv:1708.02182).
    """

    state_names: tuple[str, ...] = ("hidden", "cell")

    def __init__(self, dim: int, input_dim: int | None = None, *, weight_drop: float = 0.0) -> None:
        super().__init__()
        self.cell = nn.LSTM(input_dim or dim, dim, batch_first=True)
        self.weight_drop = weight_drop
        self.state_dims = (dim, dim)

    @torch.no_grad()
    def open_forget_gates(self) -> None:
        """Raise the forget gates' bias: fresh cells keep their value (Gers et al., 2000)."""
        for name, parameter in self.cell.named_parameters():
            if name.startswith("bias"):
                _, forget_D, _, _ = parameter.chunk(4)
                forget_D.fill_(0.5)

    def forward(self, x_BTD: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        """Return outputs and the next state."""
        hidden_1BD, cell_1BD = (tensor.unsqueeze(0).contiguous() for tensor in state)
        dropped = self.training and self.weight_drop > 0
        if dropped or _autocast_uses_float16(x_BTD):
            rate = self.weight_drop if dropped else 0.0
            y_BTD, hidden_1BD, cell_1BD = self._run_kernel(x_BTD, hidden_1BD, cell_1BD, rate=rate)
        else:
            y_BTD, (hidden_1BD, cell_1BD) = self.cell(x_BTD, (hidden_1BD, cell_1BD))
        return y_BTD, (hidden_1BD.squeeze(0), cell_1BD.squeeze(0))

    def _run_kernel(self, *tensors: Tensor, rate: float) -> tuple[Tensor, Tensor, Tensor]:
        """Call the same kernel with weights of this segment; the module's own are not changed."""
        w_input, w_hidden, *biases = self.cell.all_weights[0]
        weights = [w_input, dropout(w_hidden, rate), *biases]
        if not _autocast_uses_float16(tensors[0]):
            return _lstm(tensors, weights, training=self.training)
        with torch.autocast("cuda", enabled=False):
            narrow = ([x.bfloat16() for x in group] for group in (tensors, weights))
            return _lstm(*narrow, training=self.training)


def _lstm(
    tensors: Sequence[Tensor], weights: list[Tensor], *, training: bool
) -> tuple[Tensor, Tensor, Tensor]:
    x_BTD, *state = tensors
    # With biases, one layer, no dropout between layers, one direction, batch first.
    return torch.lstm(x_BTD, state, _flatten_weights(weights), True, 1, 0.0, training, False, True)


def _autocast_uses_float16(x_BTD: Tensor) -> bool:
    """Whether torch would run the kernel in float16, where small gradients vanish.

    On a GPU its autocast does so even if bfloat16 is requested.
    """
    return x_BTD.is_cuda and compute_dtype(x_BTD) == torch.bfloat16


def _flatten_weights(weights: list[Tensor]) -> list[Tensor]:
    """On a GPU, return views of one tensor in cuDNN's order; otherwise it copies and warns."""
    if not weights[0].is_cuda:
        return weights
    whole = torch.cat([weight.flatten() for weight in weights])
    pieces = torch.split(whole, [weight.numel() for weight in weights])
    return [piece.view_as(weight) for piece, weight in zip(pieces, weights, strict=True)]


class GRUCore(nn.Module):
    """One `nn.GRU` layer."""

    state_names: tuple[str, ...] = ("hidden",)

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.cell = nn.GRU(dim, dim, batch_first=True)

    def forward(self, x_BTD: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        """Return outputs and the next state."""
        hidden_1BD = state[0].unsqueeze(0).contiguous()
        if _autocast_uses_float16(x_BTD):
            y_BTD, hidden_1BD = self._run_kernel(x_BTD, hidden_1BD)
        else:
            y_BTD, hidden_1BD = self.cell(x_BTD, hidden_1BD)
        return y_BTD, (hidden_1BD.squeeze(0),)

    def _run_kernel(self, x_BTD: Tensor, hidden_1BD: Tensor) -> tuple[Tensor, Tensor]:
        """Call the same kernel in bfloat16, with the settings of `_lstm`."""
        with torch.autocast("cuda", enabled=False):
            weights = _flatten_weights([weight.bfloat16() for weight in self.cell.all_weights[0]])
            x_BTD, hidden_1BD = x_BTD.bfloat16(), hidden_1BD.bfloat16()
            return torch.gru(x_BTD, hidden_1BD, weights, True, 1, 0.0, self.training, False, True)


class QRNNCore(nn.Module):
    """Quasi-recurrent layer with fo-pooling over a window of one or two inputs (arXiv:1611.01576).

    `zoneout` is the share of cells that keep their value. `weight_drop` acts on its only matrix.
    """

    def __init__(
        self,
        dim: int,
        input_dim: int | None = None,
        *,
        window: int = 2,
        zoneout: float = 0.0,
        weight_drop: float = 0.0,
    ) -> None:
        super().__init__()
        if window not in (1, 2):
            raise ValueError(f"a QRNN's window must be 1 or 2, not {window}")
        input_dim = input_dim or dim
        self.window, self.zoneout, self.weight_drop = window, zoneout, weight_drop
        self.gates = StackedLinear(window * input_dim, dim, blocks=3)
        self.state_names: tuple[str, ...] = ("cell", "input")[:window]
        self.state_dims = (dim, input_dim)[:window]

    def forward(self, x_BTD: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        """Return outputs and the next state."""
        weight = dropout(self.gates.weight, self.weight_drop if self.training else 0.0)
        gates_BTG = linear(self._windows(x_BTD, state), weight, self.gates.bias)
        gates_BT3D = gates_BTG.view(*gates_BTG.shape[:2], 3, -1)
        y_BTD, cell_BD = fo_pooling(gates_BT3D, state[0], self._zoneout(x_BTD))
        return y_BTD, (cell_BD, x_BTD[:, -1])[: self.window]

    def _windows(self, x_BTD: Tensor, state: CoreState) -> Tensor:
        if self.window == 1:
            return x_BTD
        earlier_BTD = torch.cat([state[1].to(x_BTD.dtype)[:, None], x_BTD[:, :-1]], dim=1)
        return torch.cat([earlier_BTD, x_BTD], dim=-1)

    def _zoneout(self, x_BTD: Tensor) -> Tensor | float:
        """Return which cells keep their value, or in evaluation the share of each."""
        if not self.training or self.zoneout == 0:
            return self.zoneout
        shape = (*x_BTD.shape[:2], self.state_dims[0])
        return torch.rand(shape, device=x_BTD.device) < self.zoneout


Core = LSTMCore | GRUCore | QRNNCore
CORES: dict[str, type[Core]] = {"lstm": LSTMCore, "gru": GRUCore, "qrnn": QRNNCore}
