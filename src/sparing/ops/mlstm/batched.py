"""The same with a gradient written out, so that each weight's is one product over all positions.

A recorded loop would add up T gradients of the size of the weights, in the weights' precision.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


def mlstm(*inputs: Tensor) -> tuple[Tensor, Tensor]:
    """See the package's docstring."""
    kind = inputs[0].device.type
    # Precisions are chosen by hand below; autocast would cast the weights anew at every position.
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
            active_BG = _activated((gates_BG + _times(middle_BD, w_gates_GD)).to(cell_BD.dtype))
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
        to_gates_BTG, to_middle_BTD, *to_state = _backwards(saved, grad_BTD, grad_cell_BD)
        return (
            to_middle_BTD * _times(before_BTD, w_factor_DD),
            to_gates_BTG,
            _outer(to_middle_BTD * factor_BTD, before_BTD, w_factor_DD),
            _outer(to_gates_BTG, middles_BTD, w_gates_GD),
            *to_state,
            None,
        )


def _backwards(
    saved: tuple[Tensor, ...], grad_BTD: Tensor, to_cell_BD: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of gates and intermediate vectors at all positions, and of the first state."""
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


def _activated(gates_BG: Tensor) -> Tensor:
    edge = gates_BG.size(-1) // 4 * 3
    return torch.cat([torch.sigmoid(gates_BG[:, :edge]), torch.tanh(gates_BG[:, edge:])], dim=-1)


def _times(x_XD: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x_XD.to(weight.dtype), weight)


def _outer(rows_BTR: Tensor, columns_BTC: Tensor, weight: Tensor) -> Tensor:
    return rows_BTR.flatten(0, 1).T.to(weight.dtype) @ columns_BTC.flatten(0, 1).to(weight.dtype)
