"""The multiplicative LSTM's recurrence (arXiv:1609.07959).

Axes: B batch, T segment, D width, G = 4 D gates in the order input, forget, output, candidate.
The formulas and gradients are in mlstm.md.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


class MLSTMInputs(NamedTuple):
    """The inputs of one segment."""

    factor_BTD: Tensor
    """The input's factor of the intermediate vector, W_mx x."""
    gates_BTG: Tensor
    """The input's part of the gates, W_hx x + b."""
    w_factor_DD: Tensor
    """W_mh: from the hidden vector to its own factor."""
    w_gates_GD: Tensor
    """W_hm: from the intermediate vector to the gates."""
    hidden_BD: Tensor
    cell_BD: Tensor
    mask_BD: Tensor
    """Multiplies every hidden vector before it is output and fed back; ones for no dropout."""


def mlstm(inputs: MLSTMInputs) -> tuple[Tensor, Tensor]:
    """Return hidden vectors of every position (B, T, D) and the last cell (B, D).

    Products are computed in the dtype of the weights, everything else in that of the cell.
    """
    return batched(*inputs) if torch.is_grad_enabled() else reference(*inputs)


def reference(  # noqa: PLR0913  named in MLSTMInputs
    factor_BTD: Tensor,
    gates_BTG: Tensor,
    w_factor_DD: Tensor,
    w_gates_GD: Tensor,
    hidden_BD: Tensor,
    cell_BD: Tensor,
    mask_BD: Tensor,
) -> tuple[Tensor, Tensor]:
    """The definition of `mlstm`: one step after the other."""
    hiddens, low, wide = [], w_gates_GD.dtype, cell_BD.dtype
    for factor_BD, gates_BG in zip(factor_BTD.unbind(1), gates_BTG.unbind(1), strict=True):
        middle_BD = factor_BD * F.linear(hidden_BD.to(low), w_factor_DD)
        gates_BG = gates_BG + F.linear(middle_BD.to(low), w_gates_GD)
        i, f, o, candidate = gates_BG.to(wide).chunk(4, dim=-1)
        cell_BD = torch.sigmoid(f) * cell_BD + torch.sigmoid(i) * torch.tanh(candidate)
        hidden_BD = torch.sigmoid(o) * torch.tanh(cell_BD) * mask_BD
        hiddens.append(hidden_BD)
    return torch.stack(hiddens, dim=1), cell_BD


def batched(*inputs: Tensor) -> tuple[Tensor, Tensor]:
    """`mlstm` with an explicit gradient, in which each weight's is one product over all positions.

    Autograd would add up T gradients of the size of the weights, in the weights' precision.
    """
    kind = inputs[0].device.type
    # Precisions are explicit below; autocast would cast the weights again at every position.
    with torch.autocast(kind, enabled=False):
        found: tuple[Tensor, Tensor] = _Recurrence.apply(*inputs)  # type: ignore[no-untyped-call]  # torch has no types for it
    return found


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        factor_BTD, gates_BTG, w_factor_DD, w_gates_GD, hidden_BD, cell_BD, mask_BD = inputs
        made: list[tuple[Tensor, ...]] = []
        for factor_BD, gates_BG in zip(factor_BTD.unbind(1), gates_BTG.unbind(1), strict=True):
            middle_BD = factor_BD * _times(hidden_BD, w_factor_DD)
            active_BG = _activate((gates_BG + _times(middle_BD, w_gates_GD)).to(cell_BD.dtype))
            i, f, o, candidate = active_BG.chunk(4, dim=-1)
            cell_BD = f * cell_BD + i * candidate
            hidden_BD = o * torch.tanh(cell_BD) * mask_BD
            made.append((hidden_BD, cell_BD, active_BG, middle_BD))
        stacked = [torch.stack(values, dim=1) for values in zip(*made, strict=True)]
        ctx.save_for_backward(*inputs, *stacked)
        return stacked[0], cell_BD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BTD: Tensor, grad_cell_BD: Tensor) -> tuple[Any, ...]:
        saved = ctx.saved_tensors
        factor_BTD, _, w_factor_DD, w_gates_GD, first_BD, *_, hiddens_BTD, _, _, middles_BTD = saved
        before_BTD = torch.cat([first_BD[:, None].to(hiddens_BTD), hiddens_BTD[:, :-1]], dim=1)
        to_gates_BTG, to_middle_BTD, *to_state = _run_backward(saved, grad_BTD, grad_cell_BD)
        return (
            to_middle_BTD * _times(before_BTD, w_factor_DD),
            to_gates_BTG,
            _outer(to_middle_BTD * factor_BTD, before_BTD, w_factor_DD),
            _outer(to_gates_BTG, middles_BTD, w_gates_GD),
            *to_state,
            None,
        )


def _run_backward(
    saved: tuple[Tensor, ...], grad_BTD: Tensor, to_cell_BD: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return gradients of gates, intermediate vectors and the first state."""
    factor_BTD, _, w_factor_DD, w_gates_GD, _, first_BD, mask_BD, _, cells_BTD, active_BTG, _ = (
        saved
    )
    made, to_hidden_BD = [], torch.zeros_like(first_BD)
    for t in reversed(range(factor_BTD.size(1))):
        i, f, o, candidate = active_BTG[:, t].chunk(4, dim=-1)
        squashed_BD = torch.tanh(cells_BTD[:, t])
        raw_BD = (grad_BTD[:, t] + to_hidden_BD) * mask_BD
        to_cell_BD = to_cell_BD + raw_BD * o * (1 - squashed_BD.square())
        before_BD = cells_BTD[:, t - 1] if t else first_BD
        to_gates_BG = torch.cat(
            [
                to_cell_BD * candidate * i * (1 - i),
                to_cell_BD * before_BD * f * (1 - f),
                raw_BD * squashed_BD * o * (1 - o),
                to_cell_BD * i * (1 - candidate.square()),
            ],
            dim=-1,
        )
        to_middle_BD = _times(to_gates_BG, w_gates_GD.T)
        to_hidden_BD = _times(to_middle_BD * factor_BTD[:, t], w_factor_DD.T)
        to_cell_BD = to_cell_BD * f
        made.append((to_gates_BG, to_middle_BD))
    to_gates_BTG, to_middle_BTD = (torch.stack(x[::-1], dim=1) for x in zip(*made, strict=True))
    return to_gates_BTG, to_middle_BTD, to_hidden_BD, to_cell_BD


def _activate(gates_BG: Tensor) -> Tensor:
    edge = gates_BG.size(-1) // 4 * 3
    return torch.cat([torch.sigmoid(gates_BG[:, :edge]), torch.tanh(gates_BG[:, edge:])], dim=-1)


def _times(x_XD: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x_XD.to(weight.dtype), weight)


def _outer(rows_BTR: Tensor, columns_BTC: Tensor, weight: Tensor) -> Tensor:
    return rows_BTR.flatten(0, 1).T.to(weight.dtype) @ columns_BTC.flatten(0, 1).to(weight.dtype)
