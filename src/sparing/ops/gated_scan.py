"""The elementwise recurrence c_t = f_t * c_{t-1} + (1 - f_t) * z_t of QRNN and similar layers.

Axes: B batch, T segment, D width. The formulas and gradients are in gated_scan.md.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def gated_scan(forget_BTD: Tensor, candidate_BTD: Tensor, initial_BD: Tensor) -> Tensor:
    """Return all cells c_1 .. c_T, given c_0 and forget gates in [0, 1]."""
    # A few steps are cheaper one by one than in log2(T) passes over everything.
    scan = reference if forget_BTD.size(1) <= 4 else doubling
    return scan(forget_BTD, candidate_BTD, initial_BD)


def reference(forget_BTD: Tensor, candidate_BTD: Tensor, initial_BD: Tensor) -> Tensor:
    """The definition of `gated_scan`: one step after the other."""
    cell_BD, cells = initial_BD, []
    for forget_BD, candidate_BD in zip(forget_BTD.unbind(1), candidate_BTD.unbind(1), strict=True):
        cell_BD = forget_BD * cell_BD + (1 - forget_BD) * candidate_BD
        cells.append(cell_BD)
    return torch.stack(cells, dim=1)


def doubling(forget_BTD: Tensor, candidate_BTD: Tensor, initial_BD: Tensor) -> Tensor:
    """`gated_scan` in log2(T) passes: runs of 1, 2, 4, ... steps are composed (Hillis and Steele).

    A step is c -> a c + b. Every a is a product of gates in [0, 1], so nothing overflows and no
    logarithm is needed. The gradient of the cells is the same recurrence backwards in time, so
    nothing of the passes is stored for it.
    """
    cells_BTD: Tensor = _Scan.apply(forget_BTD, candidate_BTD, initial_BD)  # type: ignore[no-untyped-call]  # torch has no types for it
    return cells_BTD


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, forget_BTD: Tensor, candidate_BTD: Tensor, initial_BD: Tensor) -> Tensor:
        offset_BTD = (1 - forget_BTD) * candidate_BTD
        offset_BTD[:, 0] += forget_BTD[:, 0] * initial_BD
        cells_BTD = compose(forget_BTD, offset_BTD)
        ctx.save_for_backward(forget_BTD, candidate_BTD, initial_BD, cells_BTD)
        return cells_BTD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BTD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        forget_BTD, candidate_BTD, initial_BD, cells_BTD = ctx.saved_tensors
        # d_t = grad_t + f_{t+1} d_{t+1}; the first factor of a run multiplies nothing.
        later_BTD = forget_BTD.roll(-1, dims=1).flip(1)
        d_BTD = compose(later_BTD, grad_BTD.flip(1)).flip(1)
        before_BTD = torch.cat([initial_BD[:, None], cells_BTD[:, :-1]], dim=1)
        to_forget_BTD = d_BTD * (before_BTD - candidate_BTD)
        return to_forget_BTD, d_BTD * (1 - forget_BTD), d_BTD[:, 0] * forget_BTD[:, 0]


def compose(factor_BTD: Tensor, offset_BTD: Tensor) -> Tensor:
    """Return all c_t = factor_t c_{t-1} + offset_t from c_0 = 0."""
    reach, segment = 1, factor_BTD.size(1)
    while reach < segment:
        later_BTD = factor_BTD[:, reach:]
        moved_BTD = torch.addcmul(offset_BTD[:, reach:], later_BTD, offset_BTD[:, :-reach])
        offset_BTD = torch.cat([offset_BTD[:, :reach], moved_BTD], dim=1)
        factor_BTD = torch.cat([factor_BTD[:, :reach], later_BTD * factor_BTD[:, :-reach]], dim=1)
        reach *= 2
    return offset_BTD
