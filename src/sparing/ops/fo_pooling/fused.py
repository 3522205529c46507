"""The fast form: one Triton kernel each way, as custom operators for `torch.compile`."""

from typing import Any

import torch
import triton
from torch import Tensor

from sparing.ops.fo_pooling import kernels

SHAPE = {"TIMES": 32, "CHANNELS": 32, "STAGES": 3, "num_warps": 4}
"""The shape of a tile: the fastest of ten on an H200, forward and backward together."""


def fo_pooling(gates_BT3D: Tensor, initial_BD: Tensor) -> tuple[Tensor, Tensor]:
    """See the package's docstring."""
    # The kernels need contiguous tensors.
    y_BTD, _, last_BD = _pool(gates_BT3D.contiguous(), initial_BD.float().contiguous())
    return y_BTD, last_BD


@torch.library.custom_op("sparing::fo_pooling", mutates_args=())
def _pool(gates: Tensor, initial: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return outputs, the cells before each tile, and the last cells."""
    y, starts, last = _outputs(gates, initial)
    kernels.forward[_grid(initial)](
        gates, initial, y, starts, last, gates.size(1), DIM=initial.size(1), **SHAPE
    )
    return y, starts, last


@_pool.register_fake
def _(gates: Tensor, initial: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return _outputs(gates, initial)


@torch.library.custom_op("sparing::fo_pooling_backward", mutates_args=())
def _pool_backward(
    d_y: Tensor, d_last: Tensor, gates: Tensor, starts: Tensor
) -> tuple[Tensor, Tensor]:
    """Return gradients of gates and first cells."""
    # Before `empty_like`, which would keep another order of axes.
    d_y, d_last = d_y.contiguous(), d_last.contiguous()
    d_gates, d_initial = torch.empty_like(gates), torch.empty_like(d_last)
    given = (d_y, d_last, d_gates, d_initial)
    kernels.backward[_grid(d_last)](
        gates, starts, *given, gates.size(1), DIM=d_last.size(1), **SHAPE
    )
    return d_gates, d_initial


@_pool_backward.register_fake
def _(d_y: Tensor, d_last: Tensor, gates: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(gates), torch.empty_like(d_last.contiguous())


def _save(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(inputs[0], output[1])
    # No gradient ever reaches the cells before the tiles: no zeros are wanted for it.
    ctx.set_materialize_grads(False)


def _gradients(
    ctx: Any, d_y: Tensor | None, d_starts: None, d_last: Tensor | None
) -> tuple[Tensor, Tensor]:
    gates, starts = ctx.saved_tensors
    d_y = torch.zeros_like(gates[:, :, 0]) if d_y is None else d_y
    d_last = torch.zeros_like(starts[:, 0]) if d_last is None else d_last
    d_gates, d_initial = _pool_backward(d_y, d_last, gates, starts)
    return d_gates, d_initial


_pool.register_autograd(_gradients, setup_context=_save)


def _outputs(gates: Tensor, initial: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    batch, segment, _, dim = gates.shape
    starts = initial.new_empty(batch, triton.cdiv(segment, SHAPE["TIMES"]), dim)
    return gates.new_empty(batch, segment, dim), starts, torch.empty_like(initial)


def _grid(initial: Tensor) -> tuple[int]:
    lanes, dim = initial.shape
    return (lanes * triton.cdiv(dim, SHAPE["CHANNELS"]),)
