"""The fast form: one Triton kernel each way, as custom operators for `torch.compile`.

The softmax is summed tile by tile, and recomputed from its logarithm in the backward pass.
"""

import functools
import math
from typing import Any

import torch
import triton
from torch import Tensor

from sparing.ops.window_attention import kernels
from sparing.ops.window_attention.reference import Edge

Tile = dict[str, int]
FORWARD: dict[int, Tile] = {
    64: {"ROWS": 64, "COLUMNS": 32, "num_warps": 4, "num_stages": 3},
    128: {"ROWS": 64, "COLUMNS": 64, "num_warps": 4, "num_stages": 3},
}
BACKWARD_QUERY: dict[int, Tile] = {
    64: {"ROWS": 64, "COLUMNS": 32, "num_warps": 4, "num_stages": 4, "maxnreg": 128},
    128: {"ROWS": 64, "COLUMNS": 32, "num_warps": 4, "num_stages": 3},
}
BACKWARD_ENTRIES: dict[int, Tile] = {
    64: {"ROWS": 32, "COLUMNS": 64, "num_warps": 4, "num_stages": 3, "maxnreg": 128},
    128: {"ROWS": 32, "COLUMNS": 64, "num_warps": 4, "num_stages": 3},
}
"""Queries by keys of a tile and compiler options, by width of a head; 64 serves narrower ones too.
The fastest of about ten on an H200 in bfloat16 (benchmarks/window_tiles.py).

With fewer registers (`maxnreg`) more programs share a multiprocessor, which outweighs the few
hundred bytes that spill.
"""
LOG2E = 1.4426950408889634
NARROW = 64
"""The widest head whose tiles fit into the shared memory of any GPU, in any precision."""
LARGE_SHARED_BYTES = 131_072
"""Bytes of shared memory of data-centre GPUs; others have about 100,000."""


def window_attention(
    query_BTHK: Tensor, fresh_BT2HK: Tensor, memory_BM2HK: Tensor, edge: Edge
) -> Tensor:
    """See the package's docstring."""
    fresh_BT2HK = fresh_BT2HK.contiguous()
    query_BTHK = query_BTHK.to(fresh_BT2HK.dtype).contiguous()
    memory_BM2HK = _with_inner_strides(memory_BM2HK.to(fresh_BT2HK.dtype))
    span_H, first_B = edge.span_H.float(), edge.first_B.to(torch.int32)
    mixed_BTHK: Tensor = _attend(query_BTHK, fresh_BT2HK, memory_BM2HK, span_H, first_B, edge.ramp)[
        0
    ]
    return mixed_BTHK


def _with_inner_strides(memory_BM2HK: Tensor) -> Tensor:
    """Copy unless only lanes and positions have unusual strides, which the kernels support."""
    heads, width = memory_BM2HK.shape[3:]
    usual = (heads * width, width, 1)
    return memory_BM2HK if memory_BM2HK.stride()[2:] == usual else memory_BM2HK.contiguous()


@torch.library.custom_op("sparing::window_attention", mutates_args=())
def _attend(
    query: Tensor, fresh: Tensor, memory: Tensor, span: Tensor, first: Tensor, ramp: int
) -> tuple[Tensor, Tensor]:
    """Return the output and the logarithm (base 2) of each softmax's sum."""
    batch, segment, heads, width = query.shape
    out = torch.empty_like(query)
    lse = query.new_empty(batch, heads, segment, dtype=torch.float32)
    tile = _tile(FORWARD, query)
    kernels.forward[(triton.cdiv(segment, tile["ROWS"]) * batch, heads)](
        query, memory, fresh, span, first, out, lse, *_sizes(query, memory), _scale(width),
        **_shape(query, ramp), **tile,
    )  # fmt: skip
    return out, lse


@_attend.register_fake
def _(
    query: Tensor, fresh: Tensor, memory: Tensor, span: Tensor, first: Tensor, ramp: int
) -> tuple[Tensor, Tensor]:
    batch, segment, heads, _ = query.shape
    lse = query.new_empty(batch, heads, segment, dtype=torch.float32)
    return torch.empty_like(query), lse


@torch.library.custom_op("sparing::window_attention_backward", mutates_args=())
def _attend_backward(
    grad: Tensor, query: Tensor, fresh: Tensor, memory: Tensor, span: Tensor, first: Tensor,
    out: Tensor, lse: Tensor, ramp: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return gradients of the queries, of the fresh entries and of the spans."""
    batch, segment, heads, width = query.shape
    grad = grad.contiguous()
    delta = torch.empty_like(lse)
    d_query = torch.empty_like(query)
    d_fresh = torch.empty_like(fresh)
    by_query, by_entry = _tile(BACKWARD_QUERY, query), _tile(BACKWARD_ENTRIES, query)
    rows = triton.cdiv(segment, by_query["ROWS"])
    d_span = query.new_empty(batch, heads, rows, dtype=torch.float32)
    common = (span, first, grad, lse, delta)
    sizes = (*_sizes(query, memory), _scale(width))
    shape = _shape(query, ramp)
    kernels.backward_query[(rows * batch, heads)](
        query, memory, fresh, *common, out, d_query, d_span, *sizes, **shape, **by_query
    )
    columns = triton.cdiv(segment, by_entry["COLUMNS"])
    kernels.backward_entries[(columns * batch, heads)](
        query, fresh, *common, d_fresh, segment, memory.size(1), _scale(width), **shape, **by_entry
    )
    return d_query, d_fresh, d_span.sum((0, 2))


@_attend_backward.register_fake
def _(
    grad: Tensor, query: Tensor, fresh: Tensor, memory: Tensor, span: Tensor, first: Tensor,
    out: Tensor, lse: Tensor, ramp: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return torch.empty_like(query), torch.empty_like(fresh), torch.empty_like(span)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.ramp = inputs
    ctx.save_for_backward(*tensors, *output)


def _gradients(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    d_query, d_fresh, d_span = _attend_backward(grad, *ctx.saved_tensors, ctx.ramp)
    return d_query, d_fresh, None, d_span, None, None


_attend.register_autograd(_gradients, setup_context=_save)


def _tile(timed: dict[int, Tile], query: Tensor) -> Tile:
    """Return the tile for these queries: one that was timed, or else one that fits.

    Only data-centre GPUs have been timed, and wide heads in 16 bits alone. Elsewhere more would
    spill from the registers, so their number is not capped, and wide heads have small tiles: the
    backward pass holds two of queries and two of keys, each in a quarter of the shared memory.
    """
    width, available = query.size(-1), _shared_bytes(query.device)
    data_centre = available >= LARGE_SHARED_BYTES
    if width <= NARROW:
        usual = timed[NARROW]
        return usual if data_centre else {k: n for k, n in usual.items() if k != "maxnreg"}
    if width in timed and data_centre and query.element_size() == 2:
        return timed[width]
    row_bytes = width * query.element_size()
    rows = next((rows for rows in (64, 32) if 4 * rows * row_bytes <= available), 16)
    return {"ROWS": rows, "COLUMNS": 32, "num_warps": 8, "num_stages": 2}


@functools.cache
def _shared_bytes(device: torch.device) -> int:
    """Return the shared memory of a program; no limit where kernels run as plain Python.

    Cached, because every kernel call needs it.
    """
    if device.type != "cuda":
        return LARGE_SHARED_BYTES
    properties = triton.runtime.driver.active.utils.get_device_properties(device.index or 0)
    return int(properties["max_shared_mem"])


def _shape(query: Tensor, ramp: int) -> dict[str, int]:
    """Return the constants of all kernels."""
    heads, width = query.shape[2:]
    # A power of two, as Triton's vectors are.
    return {"RAMP": ramp, "HEADS": heads, "PADDED": max(2, triton.next_power_of_2(heads)),
            "WIDTH": width}  # fmt: skip


def _scale(width: int) -> float:
    return LOG2E / math.sqrt(width)


def _sizes(query: Tensor, memory: Tensor) -> tuple[int, int, int, int]:
    """Return the numbers of queries and of memory entries, and the strides of the latter."""
    return query.size(1), memory.size(1), memory.stride(0), memory.stride(1)
