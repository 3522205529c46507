"""The kernels behind `fused`: one tile of queries, or of keys, for one head of one lane each.

Tiles of keys out of a head's sight are never read, and those wholly inside its window skip the
mask. Memory (M entries) and the segment's own entries lie apart, and columns are counted in each by
itself: row i of the segment stands at position M + i as seen from memory, and at i in the segment.
"""

import triton
import triton.language as tl

LN2 = tl.constexpr(0.6931471805599453)
"""`scale` carries log2(e) for exp2; the derivative of a score does not."""


@triton.jit
def _place(span_at, tiles, HEADS: tl.constexpr, PADDED: tl.constexpr):
    """This program's tile, lane and head. Heads that see most keys start first.

    Their programs take a hundred times as long as others, which fill the gaps at the end.
    """
    tile, lane = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    head = tl.arange(0, PADDED)
    span = tl.load(span_at + head, mask=head < HEADS, other=float("-inf"))
    # Spans that are not numbers have no order, and every head must have its turn.
    span = tl.where(span == span, span, float("inf"))
    before, after = span[None, :], span[:, None]
    earlier = (before > after) | ((before == after) & (head[None, :] < head[:, None]))
    rank = tl.sum(earlier.to(tl.int32), 1)
    chosen = tl.sum(tl.where(rank == tl.program_id(1), head, 0), 0)
    return tile, lane.to(tl.int64), chosen


@triton.jit
def _window(
    span, start, near, columns, RAMP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Keys [low, end) of a tile of queries, of which [inner, outer) lie inside every window."""
    low = tl.maximum(start, near - (span + RAMP).to(tl.int32))
    low = tl.maximum(low, 0) // COLUMNS * COLUMNS
    end = tl.minimum(near + ROWS, columns)
    inner = tl.maximum(start, near + ROWS - 1 - span.to(tl.int32))
    inner = tl.maximum((inner + COLUMNS - 1) // COLUMNS * COLUMNS, low)
    outer = tl.minimum(near + 1, columns) // COLUMNS * COLUMNS
    whole = outer > inner
    return low, tl.where(whole, inner, low), tl.where(whole, outer, low), end


@triton.jit
def _edge(position, column, span, start, columns, RAMP: tl.constexpr):
    """The raw ramp, and where there is something to see."""
    distance = position - column
    raw = (RAMP + span - distance.to(tl.float32)) / RAMP
    seen = (distance >= 0) & (column >= start) & (column < columns) & (raw > 0)
    return raw, seen


@triton.jit
def _entries(keys, values, stride_key, column, columns, MASKED: tl.constexpr, WIDTH: tl.constexpr):
    """A tile of keys and values; nothing past the last column."""
    offset = column[:, None] * stride_key + tl.arange(0, WIDTH)[None, :]
    if MASKED:
        inside = (column < columns)[:, None]
        key = tl.load(keys + offset, mask=inside, other=0.0)
        value = tl.load(values + offset, mask=inside, other=0.0)
    else:
        key = tl.load(keys + offset)
        value = tl.load(values + offset)
    return key, value


@triton.jit
def _sum_tiles(
    accumulated, largest, total, query, keys, values, stride_key, position, low, high, span, start,
    columns, scale,
    MASKED: tl.constexpr, RAMP: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Add the tiles [low, high) to a running softmax."""
    for begin in range(low, high, COLUMNS):
        column = begin + tl.arange(0, COLUMNS)
        key, value = _entries(keys, values, stride_key, column, columns, MASKED, WIDTH)
        score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        if MASKED:
            raw, seen = _edge(position[:, None], column[None, :], span, start, columns, RAMP)
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
def _sum_source(
    accumulated, largest, total, query, keys, values, stride_key, position, near, span, start,
    columns, scale,
    RAMP: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Add what a tile of queries sees of memory, or of its own segment."""
    low, inner, outer, end = _window(span, start, near, columns, RAMP, ROWS, COLUMNS)
    accumulated, largest, total = _sum_tiles(
        accumulated, largest, total, query, keys, values, stride_key, position, low, inner, span,
        start, columns, scale, True, RAMP, WIDTH, COLUMNS)  # fmt: skip
    accumulated, largest, total = _sum_tiles(
        accumulated, largest, total, query, keys, values, stride_key, position, inner, outer, span,
        start, columns, scale, False, RAMP, WIDTH, COLUMNS)  # fmt: skip
    accumulated, largest, total = _sum_tiles(
        accumulated, largest, total, query, keys, values, stride_key, position, outer, end, span,
        start, columns, scale, True, RAMP, WIDTH, COLUMNS)  # fmt: skip
    return accumulated, largest, total


@triton.jit
def forward(
    query_at, memory_at, fresh_at, span_at, first_at, out_at, lse_at, segment, memory, stride_lane,
    stride_key, scale,
    RAMP: tl.constexpr, HEADS: tl.constexpr, PADDED: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    tile, lane, head = _place(span_at, tl.cdiv(segment, ROWS), HEADS, PADDED)
    lane_head = lane * HEADS + head
    span, start = tl.load(span_at + head), tl.load(first_at + lane)
    row, channel = tile * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    offset = ((lane * segment + row[:, None]) * HEADS + head) * WIDTH + channel[None, :]
    query = tl.load(query_at + offset, mask=(row < segment)[:, None], other=0.0)
    accumulated = tl.zeros([ROWS, WIDTH], tl.float32)
    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    old = memory_at + lane * stride_lane + head * WIDTH
    accumulated, largest, total = _sum_source(
        accumulated, largest, total, query, old, old + HEADS * WIDTH, stride_key, memory + row,
        memory + tile * ROWS, span, start, memory, scale, RAMP, WIDTH, ROWS, COLUMNS)  # fmt: skip
    own = fresh_at + (lane * segment * 2 * HEADS + head) * WIDTH
    accumulated, largest, total = _sum_source(
        accumulated, largest, total, query, own, own + HEADS * WIDTH, 2 * HEADS * WIDTH, row,
        tile * ROWS, span, tl.maximum(start - memory, 0), segment, scale, RAMP, WIDTH, ROWS,
        COLUMNS)  # fmt: skip
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
    start, columns, scale,
    MASKED: tl.constexpr, RAMP: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    for begin in range(low, high, COLUMNS):
        column = begin + tl.arange(0, COLUMNS)
        key, value = _entries(keys, values, stride_key, column, columns, MASKED, WIDTH)
        score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        change = tl.dot(grad, tl.trans(value), input_precision="ieee") - delta[:, None]
        if MASKED:
            raw, seen = _edge(position[:, None], column[None, :], span, start, columns, RAMP)
            bare = tl.where(seen, tl.exp2(score - lse[:, None]), 0.0)
            d_span += tl.sum(tl.where(raw <= 1, bare * change, 0.0), 1)
            weight = bare * tl.minimum(raw, 1.0)
        else:
            weight = tl.exp2(score - lse[:, None])
        d_score = (weight * change).to(key.dtype)
        d_query = tl.dot(d_score, key, d_query, input_precision="ieee")
    return d_query, d_span


@triton.jit
def _query_source(
    d_query, d_span, query, keys, values, stride_key, grad, lse, delta, position, near, span, start,
    columns, scale,
    RAMP: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """As `_sum_source`, in the backward pass."""
    low, inner, outer, end = _window(span, start, near, columns, RAMP, ROWS, COLUMNS)
    d_query, d_span = _query_tiles(
        d_query, d_span, query, keys, values, stride_key, grad, lse, delta, position, low, inner,
        span, start, columns, scale, True, RAMP, WIDTH, COLUMNS)  # fmt: skip
    d_query, d_span = _query_tiles(
        d_query, d_span, query, keys, values, stride_key, grad, lse, delta, position, inner, outer,
        span, start, columns, scale, False, RAMP, WIDTH, COLUMNS)  # fmt: skip
    d_query, d_span = _query_tiles(
        d_query, d_span, query, keys, values, stride_key, grad, lse, delta, position, outer, end,
        span, start, columns, scale, True, RAMP, WIDTH, COLUMNS)  # fmt: skip
    return d_query, d_span


@triton.jit
def backward_query(
    query_at, memory_at, fresh_at, span_at, first_at, grad_at, lse_at, delta_at, out_at, d_query_at,
    d_span_at, segment, memory, stride_lane, stride_key, scale,
    RAMP: tl.constexpr, HEADS: tl.constexpr, PADDED: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(segment, ROWS)
    tile, lane, head = _place(span_at, tiles, HEADS, PADDED)
    lane_head = lane * HEADS + head
    span, start = tl.load(span_at + head), tl.load(first_at + lane)
    row, channel = tile * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    there = row < segment
    offset = ((lane * segment + row[:, None]) * HEADS + head) * WIDTH + channel[None, :]
    query = tl.load(query_at + offset, mask=there[:, None], other=0.0)
    grad = tl.load(grad_at + offset, mask=there[:, None], other=0.0)
    out = tl.load(out_at + offset, mask=there[:, None], other=0.0)
    lse = tl.load(lse_at + lane_head * segment + row, mask=there, other=0.0)
    # Each softmax's own share of the gradient; the keys' kernel, which runs next, reads it.
    delta = tl.sum(grad.to(tl.float32) * out.to(tl.float32), 1)
    tl.store(delta_at + lane_head * segment + row, delta, mask=there)
    d_query = tl.zeros([ROWS, WIDTH], tl.float32)
    d_span = tl.zeros([ROWS], tl.float32)
    old = memory_at + lane * stride_lane + head * WIDTH
    d_query, d_span = _query_source(
        d_query, d_span, query, old, old + HEADS * WIDTH, stride_key, grad, lse, delta,
        memory + row, memory + tile * ROWS, span, start, memory, scale, RAMP, WIDTH, ROWS,
        COLUMNS)  # fmt: skip
    own = fresh_at + (lane * segment * 2 * HEADS + head) * WIDTH
    d_query, d_span = _query_source(
        d_query, d_span, query, own, own + HEADS * WIDTH, 2 * HEADS * WIDTH, grad, lse, delta, row,
        tile * ROWS, span, tl.maximum(start - memory, 0), segment, scale, RAMP, WIDTH, ROWS,
        COLUMNS)  # fmt: skip
    d_query = d_query * (scale * LN2)
    tl.store(d_query_at + offset, d_query.to(query.dtype), mask=there[:, None])
    d_span = tl.where(there, d_span, 0.0)
    tl.store(d_span_at + lane_head * tiles + tile, tl.sum(d_span, 0) / RAMP)


@triton.jit
def _entry_tiles(
    d_key, d_value, key, value, queries, grads, lse_at, delta_at, column, low, high, span, start,
    segment, scale,
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
            raw, seen = _edge(row[None, :], column[:, None], span, start, segment, RAMP)
            weight = tl.where(seen & there[None, :], weight * tl.minimum(raw, 1.0), 0.0)
        d_value = tl.dot(weight.to(grad.dtype), grad, d_value, input_precision="ieee")
        change = tl.dot(value, tl.trans(grad), input_precision="ieee") - delta[None, :]
        d_score = (weight * change).to(query.dtype)
        d_key = tl.dot(d_score, query, d_key, input_precision="ieee")
    return d_key, d_value


@triton.jit
def backward_entries(
    query_at, fresh_at, span_at, first_at, grad_at, lse_at, delta_at, d_fresh_at, segment, memory,
    scale,
    RAMP: tl.constexpr, HEADS: tl.constexpr, PADDED: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    tile, lane, head = _place(span_at, tl.cdiv(segment, COLUMNS), HEADS, PADDED)
    lane_head = lane * HEADS + head
    span, start = tl.load(span_at + head), tl.maximum(tl.load(first_at + lane) - memory, 0)
    column, channel = tile * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, WIDTH)
    there = column < segment
    place = ((lane * segment + column[:, None]) * 2 * HEADS + head) * WIDTH + channel[None, :]
    key = tl.load(fresh_at + place, mask=there[:, None], other=0.0)
    value = tl.load(fresh_at + place + HEADS * WIDTH, mask=there[:, None], other=0.0)
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
        d_key, d_value, key, value, queries, grads, lse_at, delta_at, column, low, inner, span,
        start, segment, scale, True, RAMP, HEADS, WIDTH, ROWS)  # fmt: skip
    d_key, d_value = _entry_tiles(
        d_key, d_value, key, value, queries, grads, lse_at, delta_at, column, inner, outer, span,
        start, segment, scale, False, RAMP, HEADS, WIDTH, ROWS)  # fmt: skip
    d_key, d_value = _entry_tiles(
        d_key, d_value, key, value, queries, grads, lse_at, delta_at, column, outer, end, span,
        start, segment, scale, True, RAMP, HEADS, WIDTH, ROWS)  # fmt: skip
    d_key = d_key * (scale * LN2)
    tl.store(d_fresh_at + place, d_key.to(key.dtype), mask=there[:, None])
    tl.store(d_fresh_at + place + HEADS * WIDTH, d_value.to(key.dtype), mask=there[:, None])
