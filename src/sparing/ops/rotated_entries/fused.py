"""The fast form: one Triton kernel each way, as custom operators for `torch.compile`.

The compiled definition has half a dozen kernels that read most numbers several times.
"""

from typing import Any

import torch
import triton
from torch import Tensor

from sparing.ops.rotated_entries import kernels
from sparing.ops.rotated_entries.reference import RotaryTable

NUMBERS = 2048
"""Elements of a tile. The backward pass then takes 64 registers per thread, without spills."""


def rotated_entries(
    three_BT3HK: Tensor,
    gain_H: Tensor,
    table: RotaryTable,
    start_B: Tensor,
    before_BHK: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """See the package's docstring."""
    # The kernels need contiguous tensors.
    given = (tensor.contiguous() for tensor in (three_BT3HK, gain_H.float(), *table, start_B))
    before = None if before_BHK is None else before_BHK.detach().contiguous()
    query_BTHK, fresh_BT2HK = _rotate(*given, before)
    return query_BTHK, fresh_BT2HK


@torch.library.custom_op("sparing::rotated_entries", mutates_args=())
def _rotate(
    three: Tensor, gain: Tensor, cosines: Tensor, sines: Tensor, start: Tensor,
    before: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return queries and entries."""
    query, fresh = _outputs(three)
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
    return _outputs(three)


@torch.library.custom_op("sparing::rotated_entries_backward", mutates_args=())
def _rotate_backward(
    d_query: Tensor, d_fresh: Tensor, three: Tensor, gain: Tensor, cosines: Tensor, sines: Tensor,
    start: Tensor, before: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return gradients of the projections and of the gains."""
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


def _outputs(three: Tensor) -> tuple[Tensor, Tensor]:
    batch, segment, _, heads, width = three.shape
    return three.new_empty(batch, segment, heads, width), three.new_empty(
        batch, segment, 2, heads, width
    )


def _plan(
    three: Tensor, cosines: Tensor, before: Tensor | None
) -> tuple[tuple[int], tuple[int, int, int], dict[str, int]]:
    """Return the grid, the sizes and the shape of a tile."""
    batch, segment, _, heads, width = three.shape
    rows = batch * segment
    shape = {"HEADS": heads, "HALF": width // 2, "ROWS": NUMBERS // width}
    shape |= {"SHIFT": int(before is not None), "num_warps": 4}
    return (heads * triton.cdiv(rows, shape["ROWS"]),), (rows, segment, cosines.size(0)), shape
