"""One Triton kernel each way for queries, biases and spans, and one for keys and values.

The softmax is summed tile by tile, and recomputed from its logarithm in the backward pass. Biases
are read where a matrix product of queries and codes of distances has left them: nothing is shifted
or gathered. Axes: B batch, T segment, M memory, S = M + T keys, H heads, K head width, W distances.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from sparing.ops.distance_attention import kernels
from sparing.ops.span_attention.reference import Ramp

NARROWEST = 16
"""Fewest channels of a tile."""
HASH_LEVELS = 1 << 31
"""A rate of dropout is met to one part in this many."""
FORWARD = {"ROWS": 64, "COLUMNS": 32, "num_warps": 4, "num_stages": 3}
BACKWARD_QUERY = {"ROWS": 64, "COLUMNS": 32, "num_warps": 4, "num_stages": 3}
BACKWARD_ENTRIES = {"ROWS": 32, "COLUMNS": 64, "num_warps": 4, "num_stages": 2}
"""Queries by keys of a tile and compiler options: those that spill no register for heads of 64
channels (ptxas for sm_90, bfloat16). They have not been timed."""


class SoftEdge(NamedTuple):
    """Where each head's window ends, and how softly."""

    span_H: Tensor
    ramp: Ramp


def distance_attention(
    query_BTHK: Tensor,
    keys_BSHK: Tensor,
    values_BSHK: Tensor,
    bias_BHTW: Tensor,
    *,
    nearest: int,
    first_B: Tensor | None = None,
    edge: SoftEdge | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """softmax over distances x of (q . k + bias + log m(x)), times values: (B, T, H, K).

    `nearest` is the distance of a query's nearest key: 0 if it sees its own position, else 1.
    Column j of `bias` belongs to distance nearest + W - 1 - j. Keys before a lane's `first` one do
    not exist; without `first` there are zero vectors before all keys. Queries and biases have been
    scaled. All tensors but spans have one dtype, which is not float64.
    """
    memory, width = keys_BSHK.size(1) - query_BTHK.size(1), bias_BHTW.size(-1)
    if first_B is None:
        # As many zero vectors as the first query sees.
        padding = max(0, width - 1 + nearest - memory)
        first_B = torch.zeros(query_BTHK.size(0), dtype=torch.int32, device=query_BTHK.device)
    else:
        padding, first_B = 0, first_B.to(torch.int32)
    span_H = query_BTHK.new_zeros(0, dtype=torch.float32) if edge is None else edge.span_H.float()
    ramp = Ramp(0) if edge is None else edge.ramp
    hash_key = first_B.new_empty(0)
    if dropout:
        limits = -(1 << 31), (1 << 31) - 1
        hash_key = torch.randint(*limits, (2,), dtype=torch.int32, device=first_B.device)
    head_dim = query_BTHK.size(-1)
    query_BTHK, keys_BSHK, values_BSHK = (
        _widen(each) for each in (query_BTHK, keys_BSHK, values_BSHK)
    )
    mixed_BTHK: Tensor = _attend(
        query_BTHK.contiguous(), *_alike(keys_BSHK, values_BSHK), _rows_together(bias_BHTW),
        span_H, first_B, hash_key, padding, nearest, ramp.length, ramp.offset,
        ramp.closed, dropout,
    )[0]  # fmt: skip
    return mixed_BTHK[..., :head_dim]


def _widen(tensor_BXHK: Tensor) -> Tensor:
    """Add channels of zeros up to a power of two, as tiles have them."""
    width = max(NARROWEST, triton.next_power_of_2(tensor_BXHK.size(-1)))
    missing = width - tensor_BXHK.size(-1)
    # Padding by nothing would copy.
    return F.pad(tensor_BXHK, (0, missing)) if missing else tensor_BXHK


def _alike(keys_BSHK: Tensor, values_BSHK: Tensor) -> tuple[Tensor, Tensor]:
    """Copy both unless they have the same strides, and whole channels."""
    if keys_BSHK.stride() == values_BSHK.stride() and keys_BSHK.stride(-1) == 1:
        return keys_BSHK, values_BSHK
    return keys_BSHK.contiguous(), values_BSHK.contiguous()


def _rows_together(bias_BHTW: Tensor) -> Tensor:
    """Copy unless the numbers lie densely and each row of them is in one piece."""
    dense = torch.empty_like(bias_BHTW, device="meta").stride() == bias_BHTW.stride()
    return bias_BHTW if dense and bias_BHTW.stride(-1) == 1 else bias_BHTW.contiguous()


@torch.library.custom_op("sparing::distance_attention", mutates_args=())
def _attend(
    query: Tensor, keys: Tensor, values: Tensor, bias: Tensor, span: Tensor, first: Tensor,
    hash_key: Tensor, padding: int, nearest: int, ramp: int, offset: int, closed: bool, rate: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the output and the logarithm (base 2) of each softmax's sum."""
    batch, segment, heads, _ = query.shape
    out, lse = _outputs(query)
    grid = (triton.cdiv(segment, FORWARD["ROWS"]) * batch, heads)
    kernels.forward[grid](
        query, keys, values, bias, span, first, hash_key, out, lse,
        *_sizes(query, keys, bias, padding), *_dropout(rate),
        **_shape(query, nearest, ramp, offset, closed, rate), **FORWARD,
    )  # fmt: skip
    return out, lse


@_attend.register_fake
def _(
    query: Tensor, keys: Tensor, values: Tensor, bias: Tensor, span: Tensor, first: Tensor,
    hash_key: Tensor, padding: int, nearest: int, ramp: int, offset: int, closed: bool, rate: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return _outputs(query)


@torch.library.custom_op("sparing::distance_attention_backward", mutates_args=())
def _attend_backward(
    grad: Tensor, query: Tensor, keys: Tensor, values: Tensor, bias: Tensor, span: Tensor,
    first: Tensor, hash_key: Tensor, out: Tensor, lse: Tensor, padding: int, nearest: int,
    ramp: int, offset: int, closed: bool, rate: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return gradients of queries, keys, values, biases and spans."""
    batch, segment, heads, _ = query.shape
    grad, delta = grad.contiguous(), torch.empty_like(lse)
    d_query, d_keys, d_values, d_bias, _ = _gradients_like(query, keys, bias, span)
    # Only what is seen gets written.
    d_bias.zero_()
    tiles = triton.cdiv(segment, BACKWARD_QUERY["ROWS"])
    d_span = lse.new_empty(batch, heads, tiles)
    common = (query, keys, values, bias, span, first, hash_key, grad, lse, delta)
    sizes = (*_sizes(query, keys, bias, padding), *_dropout(rate))
    shape = _shape(query, nearest, ramp, offset, closed, rate)
    kernels.backward_query[(tiles * batch, heads)](
        *common, out, d_query, d_bias, d_span, *sizes, **shape, **BACKWARD_QUERY
    )
    columns = triton.cdiv(keys.size(1), BACKWARD_ENTRIES["COLUMNS"])
    kernels.backward_entries[(columns * batch, heads)](
        *common, d_keys, d_values, *sizes, **shape, **BACKWARD_ENTRIES
    )
    return d_query, d_keys, d_values, d_bias, d_span.sum((0, 2)) if ramp else span.clone()


@_attend_backward.register_fake
def _(
    grad: Tensor, query: Tensor, keys: Tensor, values: Tensor, bias: Tensor, span: Tensor,
    first: Tensor, hash_key: Tensor, out: Tensor, lse: Tensor, padding: int, nearest: int,
    ramp: int, offset: int, closed: bool, rate: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return _gradients_like(query, keys, bias, span)


def _outputs(query: Tensor) -> tuple[Tensor, Tensor]:
    batch, segment, heads, _ = query.shape
    lse = query.new_empty(batch, heads, segment, dtype=torch.float32)
    return torch.empty_like(query), lse


def _gradients_like(
    query: Tensor, keys: Tensor, bias: Tensor, span: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    d_keys, d_values = (torch.empty_like(keys, memory_format=torch.contiguous_format) for _ in "kv")
    return torch.empty_like(query), d_keys, d_values, torch.empty_like(bias), torch.empty_like(span)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:7], *output)
    ctx.settings = inputs[7:]


def _gradients(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    found = _attend_backward(grad, *ctx.saved_tensors, *ctx.settings)
    return (*found, None, None, *(None for _ in ctx.settings))


_attend.register_autograd(_gradients, setup_context=_save)


def _sizes(query: Tensor, keys: Tensor, bias: Tensor, padding: int) -> tuple[int, ...]:
    """Return the sizes and strides that kernels ask for, in their order."""
    lane, head, row, _ = bias.stride()
    memory = keys.size(1) - query.size(1)
    return (query.size(1), memory, padding, *keys.stride()[:3], lane, head, row, bias.size(-1))


def _dropout(rate: float) -> tuple[int, float]:
    """Return the hash below which a weight is dropped, and what the others are multiplied by."""
    return min(round(rate * HASH_LEVELS), HASH_LEVELS - 1), 1 / (1 - rate)


def _shape(
    query: Tensor, nearest: int, ramp: int, offset: int, closed: bool, rate: float
) -> dict[str, int | bool]:
    """Return the constants of all kernels."""
    return {
        "NEAREST": nearest, "RAMP": ramp, "OFFSET": offset, "CLOSED": int(closed),
        "DROPOUT": rate > 0, "HEADS": query.size(2), "WIDTH": query.size(3),
    }  # fmt: skip
