"""The fast form: queries in chunks, each with the band of keys in its windows.

A chunk of C queries and its W + C - 1 keys make one dense product; the parallelogram of it that
lies inside the windows is a view with another stride. Axes as in `reference`; N = B x H here.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sparing.ops.dropout import dropout as drop
from sparing.ops.span_attention.reference import (
    PersistentVectors,
    Ramp,
    before_start,
    distances,
    first_key,
    log_mask,
    rows,
    slots,
)

CHUNK = 64
"""Queries at a time on a CPU: the fastest of 16 to 256 for windows from 64 to 1024."""
SHORTEST = 128
"""Fewest queries of a chunk elsewhere, where a launch costs more than a product."""


def span_attention(  # noqa: PLR0913  a public op
    query_BHTK: Tensor,
    keys_BHSK: Tensor,
    values_BHSK: Tensor,
    position_KW: Tensor,
    span: Tensor,
    *,
    ramp: Ramp,
    zeros: bool = True,
    seen_B: Tensor | None = None,
    persistent: PersistentVectors | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """See the package's docstring."""
    segment, memory = query_BHTK.size(2), keys_BHSK.size(2) - query_BHTK.size(2)
    width = position_KW.size(1)
    query_BHTK = query_BHTK * query_BHTK.size(-1) ** -0.5
    scores = band_scores(query_BHTK, select_window_keys(keys_BHSK, segment, width))
    scores = scores + query_BHTK @ position_KW.to(query_BHTK.dtype)
    scores = scores + log_mask(rows(span), distances(width, like=scores), ramp)
    if not zeros and (memory < width or seen_B is not None):
        slot_TW = slots(segment, memory, width, device=scores.device)
        gone = before_start(slot_TW, first_key(memory, seen_B), alone=persistent is None)
        scores = scores.masked_fill(gone, -torch.inf)
    if persistent is not None:
        fixed = query_BHTK @ persistent.keys_HKN.to(query_BHTK.dtype)
        scores = torch.cat([fixed.to(scores.dtype), scores], dim=-1)
    weights = drop(torch.softmax(scores, dim=-1), dropout).to(values_BHSK.dtype)
    mixed_BHTK = mix(weights[..., -width:], select_window_keys(values_BHSK, segment, width))
    if persistent is not None:
        mixed_BHTK = mixed_BHTK + weights[..., :-width] @ persistent.values_HNK.to(weights.dtype)
    return mixed_BHTK


def select_window_keys(keys_BHSK: Tensor, segment: int, width: int) -> Tensor:
    """Return the width + segment - 1 keys in the windows of the last `segment` positions.

    Before the first key there are zeros. The last key is in no window: a token does not see itself.
    """
    first = keys_BHSK.size(2) - segment - width
    inner = keys_BHSK[:, :, max(0, first) : -1]
    return F.pad(inner, (0, 0, -first, 0)) if first < 0 else inner


def band_scores(query_BHTK: Tensor, keys_BHSK: Tensor) -> Tensor:
    """Return products (B, H, T, W) of query t with keys t .. t + W - 1."""
    scores: Tensor = _ByDistance.apply(query_BHTK, keys_BHSK)  # type: ignore[no-untyped-call]
    return scores


def mix(weights_BHTW: Tensor, values_BHSK: Tensor) -> Tensor:
    """Return sums (B, H, T, K) of values t .. t + W - 1 by the weights of query t."""
    mixed: Tensor = _Mix.apply(weights_BHTW, values_BHSK)  # type: ignore[no-untyped-call]
    return mixed


class _ByDistance(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query_BHTK: Tensor, keys_BHSK: Tensor) -> Tensor:
        query_NTK, keys_NSK = query_BHTK.flatten(0, 1), keys_BHSK.flatten(0, 1)
        ctx.save_for_backward(query_NTK, keys_NSK)
        return _split_heads(band_products(query_NTK, keys_NSK), query_BHTK)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        query_NTK, keys_NSK = ctx.saved_tensors
        grad_NTW = grads[0].flatten(0, 1)
        query = _split_heads(band_sums(grad_NTW, keys_NSK), grads[0])
        return query, _split_heads(scatter_to_keys(grad_NTW, query_NTK), grads[0])


class _Mix(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights_BHTW: Tensor, values_BHSK: Tensor) -> Tensor:
        weights_NTW, values_NSK = weights_BHTW.flatten(0, 1), values_BHSK.flatten(0, 1)
        ctx.save_for_backward(weights_NTW, values_NSK)
        return _split_heads(band_sums(weights_NTW, values_NSK), weights_BHTW)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        weights_NTW, values_NSK = ctx.saved_tensors
        grad_NTK = grads[0].flatten(0, 1)
        weights = _split_heads(band_products(grad_NTK, values_NSK), grads[0])
        return weights, _split_heads(scatter_to_keys(weights_NTW, grad_NTK), grads[0])


def band_products(query_NTK: Tensor, keys_NSK: Tensor) -> Tensor:
    """Return (N, T, W): query t times keys t .. t + W - 1."""
    batch, segment, _ = query_NTK.shape
    width = keys_NSK.size(1) - segment + 1
    out_NTW = query_NTK.new_empty(batch, segment, width)
    for chunk in _chunks(query_NTK, width):
        band = keys_NSK[:, chunk.start : chunk.stop - 1 + width]
        out_NTW[:, chunk] = band_view(torch.bmm(query_NTK[:, chunk], band.mT))
    return out_NTW


def band_sums(weights_NTW: Tensor, values_NSK: Tensor) -> Tensor:
    """Return (N, T, K): values t .. t + W - 1 weighted for query t."""
    batch, segment, width = weights_NTW.shape
    out_NTK = values_NSK.new_empty(batch, segment, values_NSK.size(2))
    for chunk, dense in _dense(weights_NTW):
        out_NTK[:, chunk] = torch.bmm(dense, values_NSK[:, chunk.start : chunk.stop - 1 + width])
    return out_NTK


def scatter_to_keys(weights_NTW: Tensor, query_NTK: Tensor) -> Tensor:
    """Return (N, S, K): what each key receives from the queries that see it."""
    batch, segment, width = weights_NTW.shape
    out_NSK = query_NTK.new_zeros(batch, segment + width - 1, query_NTK.size(2))
    for chunk, dense in _dense(weights_NTW):
        band = out_NSK[:, chunk.start : chunk.stop - 1 + width]
        band += torch.bmm(dense.mT, query_NTK[:, chunk])
    return out_NSK


def band_view(dense: Tensor) -> Tensor:
    """Return the view (N, C, W) whose row i starts at column i of (N, C, W + C - 1)."""
    batch, rows_, columns = dense.shape
    shape = (batch, rows_, columns - rows_ + 1)
    return dense.as_strided(shape, (rows_ * columns, columns + 1, 1))


def _dense(weights_NTW: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield chunks of queries with their weights as dense matrices over the band of keys."""
    batch, _, width = weights_NTW.shape
    dense = weights_NTW.new_zeros(0)
    for chunk in _chunks(weights_NTW, width):
        rows_ = chunk.stop - chunk.start
        if dense.size(0) == 0 or dense.size(1) != rows_:
            dense = weights_NTW.new_zeros(batch, rows_, width + rows_ - 1)
        # Outside the band it stays zero from chunk to chunk.
        band_view(dense).copy_(weights_NTW[:, chunk])
        yield chunk, dense


def _chunks(like: Tensor, width: int) -> list[slice]:
    """Split queries: short chunks waste calls, long ones waste products on keys out of reach."""
    segment, size = like.size(1), CHUNK
    if like.device.type != "cpu":
        size = max(SHORTEST, 1 << (width // 2).bit_length())
    return [slice(at, min(at + size, segment)) for at in range(0, segment, size)]


def _split_heads(x_NXX: Tensor, like_BHXX: Tensor) -> Tensor:
    return x_NXX.view(*like_BHXX.shape[:2], *x_NXX.shape[1:])
