"""The same in one kernel each way (Triton), as operators that `torch.compile` can see."""

from typing import Any

import torch
import triton
from torch import Tensor

from sparing.ops.fo_pooling import kernels

SHAPE = {"TIMES": 32, "CHANNELS": 32, "STAGES": 3, "num_warps": 4}
"""Of a tile: of ten that were tried on an H200, the one with the least time both ways."""


def fo_pooling(gates_BT3D: Tensor, initial_BD: Tensor) -> tuple[Tensor, Tensor]:
    """See the package's docstring."""
    # The kernels know of no gaps between numbers.
    y_BTD, _, last_BD = _pool(gates_BT3D.contiguous(), initial_BD.float().contiguous())
    return y_BTD, last_BD


@torch.library.custom_op("sparing::fo_pooling", mutates_args=())
def _pool(gates: Tensor, initial: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, all cells, and the last of them."""
    y, cells, _ = _room(gates, initial)
    kernels.forward[_grid(initial)](
        gates, initial, y, cells, gates.size(1), DIM=initial.size(1), **SHAPE
    )
    return y, cells, cells[:, -1].clone()


@_pool.register_fake
def _(gates: Tensor, initial: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return _room(gates, initial)


@torch.library.custom_op("sparing::fo_pooling_backward", mutates_args=())
def _pool_backward(
    d_y: Tensor, d_last: Tensor, gates: Tensor, initial: Tensor, cells: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of gates and first cells."""
    d_gates, d_initial = torch.empty_like(gates), torch.empty_like(initial)
    given = (d_y.contiguous(), d_last.contiguous(), d_gates, d_initial)
    kernels.backward[_grid(initial)](
        gates, initial, cells, *given, gates.size(1), DIM=initial.size(1), **SHAPE
    )
    return d_gates, d_initial


@_pool_backward.register_fake
def _(
    d_y: Tensor, d_last: Tensor, gates: Tensor, initial: Tensor, cells: Tensor
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(gates), torch.empty_like(initial)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, output[1])
    # Nobody asks for the gradient of all cells: zeros for it would be the largest tensor here.
    ctx.set_materialize_grads(False)


def _gradients(
    ctx: Any, d_y: Tensor | None, d_cells: None, d_last: Tensor | None
) -> tuple[Tensor, Tensor]:
    gates, initial, cells = ctx.saved_tensors
    d_y = torch.zeros_like(cells, dtype=gates.dtype) if d_y is None else d_y
    d_last = torch.zeros_like(initial) if d_last is None else d_last
    d_gates, d_initial = _pool_backward(d_y, d_last, gates, initial, cells)
    return d_gates, d_initial


_pool.register_autograd(_gradients, setup_context=_save)


def _room(gates: Tensor, initial: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    batch, segment, _, dim = gates.shape
    shape = (batch, segment, dim)
    return gates.new_empty(shape), initial.new_empty(shape), torch.empty_like(initial)


def _grid(initial: Tensor) -> tuple[int]:
    lanes, dim = initial.shape
    return (lanes * triton.cdiv(dim, SHAPE["CHANNELS"]),)
