"""The same in one kernel each way (Triton), as operators that `torch.compile` can see.

Compiled from the definition it is half a dozen kernels that read most numbers several times.
"""

from typing import Any

import torch
import triton
from torch import Tensor

from sparing.ops.rotated_entries import kernels
from sparing.ops.rotated_entries.turns import Turns

NUMBERS = 2048
"""Of a tile. The way back then takes 64 registers of each thread, and spills none."""


def rotated_entries(
    three_BT3HK: Tensor,
    gain_H: Tensor,
    turns: Turns,
    start_B: Tensor,
    before_BHK: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """See the package's docstring."""
    # The kernels know of no gaps between numbers.
    given = (tensor.contiguous() for tensor in (three_BT3HK, gain_H.float(), *turns, start_B))
    before = None if before_BHK is None else before_BHK.detach().contiguous()
    query_BTHK, fresh_BT2HK = _rotate(*given, before)
    return query_BTHK, fresh_BT2HK


@torch.library.custom_op("sparing::rotated_entries", mutates_args=())
def _rotate(
    three: Tensor, gain: Tensor, cosines: Tensor, sines: Tensor, start: Tensor,
    before: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Queries and entries."""
    query, fresh = _room(three)
    grid, sizes, shape = _plan(three, cosines, before)
    earlier = three if before is None else before
    kernels.forward[grid](
        three, gain, cosines, sines, start, earlier, query, fresh, *sizes, **shape
    )
    return query, fresh


@_rotate.register_fake
def _(
    three: Tensor, gain: Tensor, cosines: Tensor, sines: Tensor, start: Tensor,
    before: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return _room(three)


@torch.library.custom_op("sparing::rotated_entries_backward", mutates_args=())
def _rotate_backward(
    d_query: Tensor, d_fresh: Tensor, three: Tensor, gain: Tensor, cosines: Tensor, sines: Tensor,
    start: Tensor, before: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients of what was projected and of the gains."""
    grid, sizes, shape = _plan(three, cosines, before)
    d_three, d_gain = torch.empty_like(three), gain.new_empty(grid[0] // gain.numel(), gain.numel())
    given = (d_query.contiguous(), d_fresh.contiguous())
    kernels.backward[grid](
        three, gain, cosines, sines, start, *given, d_three, d_gain, *sizes, **shape
    )
    return d_three, d_gain.sum(0)


@_rotate_backward.register_fake
def _(
    d_query: Tensor, d_fresh: Tensor, three: Tensor, gain: Tensor, cosines: Tensor, sines: Tensor,
    start: Tensor, before: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return torch.empty_like(three), torch.empty_like(gain)


def _save(ctx: Any, inputs: tuple[Tensor | None, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, d_query: Tensor, d_fresh: Tensor) -> tuple[Tensor | None, ...]:
    return (*_rotate_backward(d_query, d_fresh, *ctx.saved_tensors), None, None, None, None)


_rotate.register_autograd(_gradients, setup_context=_save)


def _room(three: Tensor) -> tuple[Tensor, Tensor]:
    batch, segment, _, heads, width = three.shape
    return three.new_empty(batch, segment, heads, width), three.new_empty(
        batch, segment, 2, heads, width
    )


def _plan(
    three: Tensor, cosines: Tensor, before: Tensor | None
) -> tuple[tuple[int], tuple[int, int, int], dict[str, int]]:
    """The grid, the sizes and the shape of a tile. Heads of one tile are neighbours there."""
    batch, segment, _, heads, width = three.shape
    rows = batch * segment
    shape = {"HEADS": heads, "HALF": width // 2, "ROWS": NUMBERS // width}
    shape |= {"SHIFT": int(before is not None), "num_warps": 4}
    return (heads * triton.cdiv(rows, shape["ROWS"]),), (rows, segment, cosines.size(0)), shape
