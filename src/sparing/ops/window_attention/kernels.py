"""The kernels behind `fused`: one tile of queries, or of keys, for one head of one lane each.

Tiles of keys out of a head's sight are never read, and those wholly inside its window skip the
mask. Row i of the segment stands at position S - T + i among the S stored entries.
"""

import triton
import triton.language as tl

LN2 = tl.constexpr(0.6931471805599453)
"""`scale` carries log2(e) for exp2; the derivative of a score does not."""


@triton.jit
def _window(
    span, start, near, position_end, RAMP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Keys [low, end) of a tile of queries, of which [inner, outer) lie inside every window."""
    low = tl.maximum(start, near - (span + RAMP).to(tl.int32))
    low = tl.maximum(low, 0) // COLUMNS * COLUMNS
    end = tl.minimum(near + ROWS, position_end)
    inner = tl.maximum(start, near + ROWS - 1 - span.to(tl.int32))
    inner = tl.maximum((inner + COLUMNS - 1) // COLUMNS * COLUMNS, low)
    outer = (near + 1) // COLUMNS * COLUMNS
    whole = outer > inner
    return low, tl.where(whole, inner, low), tl.where(whole, outer, low), end


@triton.jit
def _edge(position, column, span, start, position_end, RAMP: tl.constexpr):
    """The raw ramp, and where there is something to see."""
    distance = position - column
    raw = (RAMP + span - distance.to(tl.float32)) / RAMP
    seen = (distance >= 0) & (column >= start) & (column < position_end) & (raw > 0)
    return raw, seen


@triton.jit
def _sum_tiles(
    accumulated, largest, total, query, keys, values, stride_key, position, low, high, span, start,
    position_end, scale,
    MASKED: tl.constexpr, RAMP: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Add the tiles [low, high) to a running softmax."""
    channel = tl.arange(0, WIDTH)
    for begin in range(low, high, COLUMNS):
        column = begin + tl.arange(0, COLUMNS)
        offset = column[:, None] * stride_key + channel[None, :]
        if MASKED:
            inside = (column < position_end)[:, None]
            key = tl.load(keys + offset, mask=inside, other=0.0)
            value = tl.load(values + offset, mask=inside, other=0.0)
        else:
            key = tl.load(keys + offset)
            value = tl.load(values + offset)
        score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        if MASKED:
            raw, seen = _edge(position[:, None], column[None, :], span, start, position_end, RAMP)
            score = tl.where(seen, score, float("-inf"))
        above = tl.maximum(largest, tl.max(score, 1))
        safe = tl.where(above == float("-inf"), 0.0, above)
        weight = tl.exp2(score - safe[:, None])
        if MASKED:
            weight = weight * tl.minimum(raw, 1.0)
            weight = tl.where(seen, weight, 0.0)
        shrink = tl.exp2(largest - safe)
        total = total * shrink + tl.sum(weight, 1)
        accumulated = accumulated * shrink[:, None]
        accumulated = tl.dot(weight.to(value.dtype), value, accumulated, input_precision="ieee")
        largest = above
    return accumulated, largest, total


@triton.jit
def forward(
    query_at, stored_at, span_at, first_at, out_at, lse_at, segment, entries, stride_lane,
    stride_key, scale,
    RAMP: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    # The last tiles see most keys; they start first.
    tile, lane_head = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1)
    lane, head = (lane_head // HEADS).to(tl.int64), lane_head % HEADS
    span, start = tl.load(span_at + head), tl.load(first_at + lane)
    row, channel = tile * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    own = entries - segment
    position, near = own + row, own + tile * ROWS
    offset = ((lane * segment + row[:, None]) * HEADS + head) * WIDTH + channel[None, :]
    query = tl.load(query_at + offset, mask=(row < segment)[:, None], other=0.0)
    keys = stored_at + lane * stride_lane + head * WIDTH
    values = keys + HEADS * WIDTH
    accumulated = tl.zeros([ROWS, WIDTH], tl.float32)
    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    low, inner, outer, end = _window(span, start, near, entries, RAMP, ROWS, COLUMNS)
    accumulated, largest, total = _sum_tiles(
        accumulated, largest, total, query, keys, values, stride_key, position, low, inner, span,
        start, entries, scale, True, RAMP, WIDTH, COLUMNS)  # fmt: skip
    accumulated, largest, total = _sum_tiles(
        accumulated, largest, total, query, keys, values, stride_key, position, inner, outer, span,
        start, entries, scale, False, RAMP, WIDTH, COLUMNS)  # fmt: skip
    accumulated, largest, total = _sum_tiles(
        accumulated, largest, total, query, keys, values, stride_key, position, outer, end, span,
        start, entries, scale, True, RAMP, WIDTH, COLUMNS)  # fmt: skip
    total = tl.where(total == 0, 1.0, total)
    tl.store(
        out_at + offset,
        (accumulated / total[:, None]).to(query.dtype),
        mask=(row < segment)[:, None],
    )
    tl.store(lse_at + lane_head * segment + row, largest + tl.log2(total), mask=row < segment)


@triton.jit
def _query_tiles(
    d_query, d_span, query, keys, values, stride_key, grad, lse, delta, position, low, high, span,
    start, position_end, scale,
    MASKED: tl.constexpr, RAMP: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    channel = tl.arange(0, WIDTH)
    for begin in range(low, high, COLUMNS):
        column = begin + tl.arange(0, COLUMNS)
        offset = column[:, None] * stride_key + channel[None, :]
        if MASKED:
            inside = (column < position_end)[:, None]
            key = tl.load(keys + offset, mask=inside, other=0.0)
            value = tl.load(values + offset, mask=inside, other=0.0)
        else:
            key = tl.load(keys + offset)
            value = tl.load(values + offset)
        score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        change = tl.dot(grad, tl.trans(value), input_precision="ieee") - delta[:, None]
        if MASKED:
            raw, seen = _edge(position[:, None], column[None, :], span, start, position_end, RAMP)
            bare = tl.where(seen, tl.exp2(score - lse[:, None]), 0.0)
            d_span += tl.sum(tl.where(raw <= 1, bare * change, 0.0), 1)
            weight = bare * tl.minimum(raw, 1.0)
        else:
            weight = tl.exp2(score - lse[:, None])
        d_score = (weight * change).to(key.dtype)
        d_query = tl.dot(d_score, key, d_query, input_precision="ieee")
    return d_query, d_span


@triton.jit
def backward_query(
    query_at, stored_at, span_at, first_at, grad_at, lse_at, delta_at, out_at, d_query_at,
    d_span_at, segment, entries, stride_lane, stride_key, scale,
    RAMP: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    tile, lane_head = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1)
    lane, head = (lane_head // HEADS).to(tl.int64), lane_head % HEADS
    span, start = tl.load(span_at + head), tl.load(first_at + lane)
    row, channel = tile * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    own = entries - segment
    position, near = own + row, own + tile * ROWS
    there = row < segment
    offset = ((lane * segment + row[:, None]) * HEADS + head) * WIDTH + channel[None, :]
    query = tl.load(query_at + offset, mask=there[:, None], other=0.0)
    grad = tl.load(grad_at + offset, mask=there[:, None], other=0.0)
    out = tl.load(out_at + offset, mask=there[:, None], other=0.0)
    lse = tl.load(lse_at + lane_head * segment + row, mask=there, other=0.0)
    # Each softmax's own share of the gradient; the keys' kernel, which runs next, reads it.
    delta = tl.sum(grad.to(tl.float32) * out.to(tl.float32), 1)
    tl.store(delta_at + lane_head * segment + row, delta, mask=there)
    keys = stored_at + lane * stride_lane + head * WIDTH
    values = keys + HEADS * WIDTH
    d_query = tl.zeros([ROWS, WIDTH], tl.float32)
    d_span = tl.zeros([ROWS], tl.float32)
    low, inner, outer, end = _window(span, start, near, entries, RAMP, ROWS, COLUMNS)
    d_query, d_span = _query_tiles(
        d_query, d_span, query, keys, values, stride_key, grad, lse, delta, position, low, inner,
        span, start, entries, scale, True, RAMP, WIDTH, COLUMNS)  # fmt: skip
    d_query, d_span = _query_tiles(
        d_query, d_span, query, keys, values, stride_key, grad, lse, delta, position, inner, outer,
        span, start, entries, scale, False, RAMP, WIDTH, COLUMNS)  # fmt: skip
    d_query, d_span = _query_tiles(
        d_query, d_span, query, keys, values, stride_key, grad, lse, delta, position, outer, end,
        span, start, entries, scale, True, RAMP, WIDTH, COLUMNS)  # fmt: skip
    d_query = d_query * (scale * LN2)
    tl.store(d_query_at + offset, d_query.to(query.dtype), mask=there[:, None])
    d_span = tl.where(there, d_span, 0.0)
    tl.store(d_span_at + lane_head * tl.num_programs(0) + tile, tl.sum(d_span, 0) / RAMP)


@triton.jit
def _entry_tiles(
    d_key, d_value, key, value, queries, grads, lse_at, delta_at, own, column, low, high, span,
    start, segment, entries, scale,
    MASKED: tl.constexpr, RAMP: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    channel = tl.arange(0, WIDTH)
    for begin in range(low, high, ROWS):
        row = begin + tl.arange(0, ROWS)
        there = row < segment
        offset = row[:, None] * (HEADS * WIDTH) + channel[None, :]
        query = tl.load(queries + offset, mask=there[:, None], other=0.0)
        grad = tl.load(grads + offset, mask=there[:, None], other=0.0)
        lse = tl.load(lse_at + row, mask=there, other=0.0)
        delta = tl.load(delta_at + row, mask=there, other=0.0)
        # Transposed: keys down, queries across, so that both sums are plain products.
        score = tl.dot(key, tl.trans(query), input_precision="ieee") * scale
        weight = tl.exp2(score - lse[None, :])
        if MASKED:
            position = own + row
            raw, seen = _edge(position[None, :], column[:, None], span, start, entries, RAMP)
            weight = tl.where(seen & there[None, :], weight * tl.minimum(raw, 1.0), 0.0)
        d_value = tl.dot(weight.to(grad.dtype), grad, d_value, input_precision="ieee")
        change = tl.dot(value, tl.trans(grad), input_precision="ieee") - delta[None, :]
        d_score = (weight * change).to(query.dtype)
        d_key = tl.dot(d_score, query, d_key, input_precision="ieee")
    return d_key, d_value


@triton.jit
def backward_entries(
    query_at, stored_at, span_at, first_at, grad_at, lse_at, delta_at, d_fresh_at, segment, entries,
    stride_lane, stride_key, scale,
    RAMP: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    tile, lane_head = tl.program_id(0), tl.program_id(1)
    lane, head = (lane_head // HEADS).to(tl.int64), lane_head % HEADS
    span, start = tl.load(span_at + head), tl.load(first_at + lane)
    own = entries - segment
    fresh, channel = tile * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, WIDTH)
    column, there = own + fresh, fresh < segment
    keys = stored_at + lane * stride_lane + head * WIDTH
    offset = column[:, None] * stride_key + channel[None, :]
    key = tl.load(keys + offset, mask=there[:, None], other=0.0)
    value = tl.load(keys + HEADS * WIDTH + offset, mask=there[:, None], other=0.0)
    queries = query_at + (lane * segment * HEADS + head) * WIDTH
    grads = grad_at + (lane * segment * HEADS + head) * WIDTH
    lse_at += lane_head * segment
    delta_at += lane_head * segment
    d_key = tl.zeros([COLUMNS, WIDTH], tl.float32)
    d_value = tl.zeros([COLUMNS, WIDTH], tl.float32)
    first_row = tile * COLUMNS
    low = first_row // ROWS * ROWS
    end = tl.minimum(segment, first_row + COLUMNS + (span + RAMP).to(tl.int32))
    inner = (first_row + COLUMNS - 1 + ROWS - 1) // ROWS * ROWS
    outer = tl.minimum(first_row + span.to(tl.int32) + 1, segment) // ROWS * ROWS
    whole = outer > inner
    inner, outer = tl.where(whole, inner, low), tl.where(whole, outer, low)
    d_key, d_value = _entry_tiles(
        d_key, d_value, key, value, queries, grads, lse_at, delta_at, own, column, low, inner, span,
        start, segment, entries, scale, True, RAMP, HEADS, WIDTH, ROWS)  # fmt: skip
    d_key, d_value = _entry_tiles(
        d_key, d_value, key, value, queries, grads, lse_at, delta_at, own, column, inner, outer,
        span, start, segment, entries, scale, False, RAMP, HEADS, WIDTH, ROWS)  # fmt: skip
    d_key, d_value = _entry_tiles(
        d_key, d_value, key, value, queries, grads, lse_at, delta_at, own, column, outer, end, span,
        start, segment, entries, scale, True, RAMP, HEADS, WIDTH, ROWS)  # fmt: skip
    d_key = d_key * (scale * LN2)
    place = ((lane * segment + fresh[:, None]) * 2 * HEADS + head) * WIDTH + channel[None, :]
    tl.store(d_fresh_at + place, d_key.to(key.dtype), mask=there[:, None])
    tl.store(d_fresh_at + place + HEADS * WIDTH, d_value.to(key.dtype), mask=there[:, None])
