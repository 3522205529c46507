"""The kernels behind `fused`: one tile of queries, or of keys, for one head of one lane each.

Keys are counted from `padding` places before the first one, where zero vectors may stand. Tiles out
of a head's reach are never read, and those wholly inside every query's window skip the mask. The
bias of a query and a key lies in the query's row, in the column of their distance; since columns
are in the order of keys, consecutive keys have consecutive biases.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
"""Scores are multiplied by it, because the hardware's exponential has base 2."""
LARGEST = tl.constexpr(96.0)
"""Exponents end here, so that a score far above the others at the end of a ramp stays finite."""


@triton.jit
def _distances(
    span_at, head, width,
    NEAREST: tl.constexpr, RAMP: tl.constexpr, OFFSET: tl.constexpr, CLOSED: tl.constexpr,
):  # fmt: skip
    """A head's span, the farthest distance that counts, and the farthest before the ramp."""
    far = width - 1 + NEAREST
    if RAMP > 0:
        span = tl.load(span_at + head)
        far = tl.minimum(far, tl.floor(span + (RAMP + OFFSET)).to(tl.int32))
        flat = tl.minimum(far, tl.floor(span + OFFSET).to(tl.int32) - CLOSED)
    else:
        span, flat = 0.0, far
    # A span that is not a number must not lead outside the tensors.
    return span, tl.maximum(far, -1), tl.maximum(flat, -1)


@triton.jit
def _edge(place, column, first, columns, span, far, there, NEAREST: tl.constexpr,
          RAMP: tl.constexpr, OFFSET: tl.constexpr):  # fmt: skip
    """The soft mask before it is clamped, and which pairs of a tile see each other at all."""
    distance = place - column
    seen = (distance >= NEAREST) & (distance <= far) & (column >= first) & (column < columns)
    if RAMP > 0:
        raw = (span + (RAMP + OFFSET) - distance.to(tl.float32)) / RAMP
    else:
        raw = tl.full(distance.shape, 1.0, tl.float32)
    return raw, seen & there & (raw >= 0)


@triton.jit
def _entries(keys, values, stride, column, padding, columns, MASKED: tl.constexpr,
             WIDTH: tl.constexpr):  # fmt: skip
    """A tile of keys and values; zeros before the first and after the last."""
    offset = (column - padding)[:, None] * stride + tl.arange(0, WIDTH)[None, :]
    if MASKED:
        inside = ((column >= padding) & (column < columns))[:, None]
        key = tl.load(keys + offset, mask=inside, other=0.0)
        value = tl.load(values + offset, mask=inside, other=0.0)
    else:
        key = tl.load(keys + offset)
        value = tl.load(values + offset)
    return key, value


@triton.jit
def _stays(row, column, columns, hash_key, threshold):
    """Which weights dropout leaves: a hash (lowbias32) of their index and a random key."""
    x = (row.to(tl.uint32) * columns.to(tl.uint32) + column.to(tl.uint32)) ^ tl.load(hash_key).to(
        tl.uint32, bitcast=True
    )
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = ((x ^ (x >> 15)) + tl.load(hash_key + 1).to(tl.uint32, bitcast=True)) * 0x846CA68B
    x = x ^ (x >> 16)
    return (x >> 1).to(tl.int32) >= threshold


@triton.jit
def _keys_of_queries(near, first, padding, columns, far, flat, NEAREST: tl.constexpr,
                     ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    """Keys [low, end) of a tile of queries, of which [inner, outer) lie inside every window."""
    low = tl.maximum(first, near - far) // COLUMNS * COLUMNS
    end = tl.minimum(near + ROWS - NEAREST, columns)
    inner = tl.maximum(tl.maximum(first, padding), near + ROWS - 1 - flat)
    inner = tl.maximum((inner + COLUMNS - 1) // COLUMNS * COLUMNS, low)
    outer = tl.minimum(near - NEAREST + 1, columns) // COLUMNS * COLUMNS
    whole = outer > inner
    return low, tl.where(whole, inner, low), tl.where(whole, outer, low), end


@triton.jit
def _sum_tiles(
    mixed, largest, total, query, keys, values, stride, bias_row, place, row, there, low, high,
    first, padding, columns, span, far, last, hash_key, threshold, scale,
    MASKED: tl.constexpr, NEAREST: tl.constexpr, RAMP: tl.constexpr, OFFSET: tl.constexpr,
    DROPOUT: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Add the tiles [low, high) to a running softmax."""
    for begin in range(low, high, COLUMNS):
        column = begin + tl.arange(0, COLUMNS)
        key, value = _entries(keys, values, stride, column, padding, columns, MASKED, WIDTH)
        score = tl.dot(query, tl.trans(key), input_precision="ieee")
        bias_at = bias_row + (last - place[:, None] + column[None, :])
        if MASKED:
            raw, seen = _edge(place[:, None], column[None, :], first, columns, span, far,
                              there[:, None], NEAREST, RAMP, OFFSET)  # fmt: skip
            # At the very end of a ramp the weight is zero, however high the score.
            seen = seen & (raw > 0)
            bias = tl.load(bias_at, mask=seen, other=0.0)
            score = tl.where(seen, (score + bias) * LOG2E, float("-inf"))
        else:
            bias = tl.load(bias_at, mask=there[:, None], other=0.0)
            score = (score + bias) * LOG2E
        above = tl.maximum(largest, tl.max(score, 1))
        safe = tl.where(above == float("-inf"), 0.0, above)
        weight = tl.exp2(score - safe[:, None])
        if MASKED:
            weight = tl.where(seen, weight * tl.minimum(raw, 1.0), 0.0)
        shrink = tl.exp2(largest - safe)
        total = total * shrink + tl.sum(weight, 1)
        if DROPOUT:
            stays = _stays(row[:, None], column[None, :], columns, hash_key, threshold)
            weight = tl.where(stays, weight * scale, 0.0)
        mixed = mixed * shrink[:, None]
        mixed = tl.dot(weight.to(value.dtype), value, mixed, input_precision="ieee")
        largest = above
    return mixed, largest, total


@triton.jit
def forward(
    query_at, key_at, value_at, bias_at, span_at, first_at, hash_key, out_at, lse_at, segment,
    memory, padding, stride_lane, stride_key, stride_head, bias_lane, bias_head, bias_row, width,
    threshold, scale,
    NEAREST: tl.constexpr, RAMP: tl.constexpr, OFFSET: tl.constexpr, CLOSED: tl.constexpr,
    DROPOUT: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(segment, ROWS)
    tile, lane, head = (
        tl.program_id(0) % tiles,
        (tl.program_id(0) // tiles).to(tl.int64),
        tl.program_id(1),
    )
    span, far, flat = _distances(span_at, head, width, NEAREST, RAMP, OFFSET, CLOSED)
    row, channel = tile * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    there = row < segment
    offset = ((lane * segment + row[:, None]) * HEADS + head) * WIDTH + channel[None, :]
    query = tl.load(query_at + offset, mask=there[:, None], other=0.0)
    keys = key_at + lane * stride_lane + head * stride_head
    values = value_at + lane * stride_lane + head * stride_head
    bias_rows = bias_at + lane * bias_lane + head * bias_head + row[:, None] * bias_row
    before = memory + padding
    place, columns, first = before + row, before + segment, tl.load(first_at + lane)
    numbers = (lane * HEADS + head) * segment + row
    mixed = tl.zeros([ROWS, WIDTH], tl.float32)
    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    low, inner, outer, end = _keys_of_queries(
        before + tile * ROWS, first, padding, columns, far, flat, NEAREST, ROWS, COLUMNS
    )
    last = width - 1 + NEAREST
    mixed, largest, total = _sum_tiles(
        mixed, largest, total, query, keys, values, stride_key, bias_rows, place, numbers, there,
        low, inner, first, padding, columns, span, far, last, hash_key, threshold, scale,
        True, NEAREST, RAMP, OFFSET, DROPOUT, WIDTH, COLUMNS)  # fmt: skip
    mixed, largest, total = _sum_tiles(
        mixed, largest, total, query, keys, values, stride_key, bias_rows, place, numbers, there,
        inner, outer, first, padding, columns, span, far, last, hash_key, threshold, scale,
        False, NEAREST, RAMP, OFFSET, DROPOUT, WIDTH, COLUMNS)  # fmt: skip
    mixed, largest, total = _sum_tiles(
        mixed, largest, total, query, keys, values, stride_key, bias_rows, place, numbers, there,
        outer, end, first, padding, columns, span, far, last, hash_key, threshold, scale,
        True, NEAREST, RAMP, OFFSET, DROPOUT, WIDTH, COLUMNS)  # fmt: skip
    total = tl.where(total == 0, 1.0, total)
    tl.store(out_at + offset, (mixed / total[:, None]).to(query.dtype), mask=there[:, None])
    tl.store(lse_at + numbers, largest + tl.log2(total), mask=there)


@triton.jit
def _query_tiles(
    d_query, d_span, query, keys, values, stride, bias_row, d_bias_row, place, row, there, grad,
    lse, delta, low, high, first, padding, columns, span, far, last, hash_key, threshold, scale,
    MASKED: tl.constexpr, NEAREST: tl.constexpr, RAMP: tl.constexpr, OFFSET: tl.constexpr,
    CLOSED: tl.constexpr, DROPOUT: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    for begin in range(low, high, COLUMNS):
        column = begin + tl.arange(0, COLUMNS)
        key, value = _entries(keys, values, stride, column, padding, columns, MASKED, WIDTH)
        score = tl.dot(query, tl.trans(key), input_precision="ieee")
        change = tl.dot(grad, tl.trans(value), input_precision="ieee")
        if DROPOUT:
            stays = _stays(row[:, None], column[None, :], columns, hash_key, threshold)
            change = tl.where(stays, change * scale, 0.0)
        change -= delta[:, None]
        at = last - place[:, None] + column[None, :]
        if MASKED:
            raw, seen = _edge(place[:, None], column[None, :], first, columns, span, far,
                              there[:, None], NEAREST, RAMP, OFFSET)  # fmt: skip
            bias = tl.load(bias_row + at, mask=seen, other=0.0)
            power = tl.minimum((score + bias) * LOG2E - lse[:, None], LARGEST)
            bare = tl.where(seen, tl.exp2(power), 0.0)
            if RAMP > 0:
                slopes = (raw <= 1) if CLOSED else (raw < 1)
                d_span += tl.sum(tl.where(slopes, bare * change, 0.0), 1)
            weight = bare * tl.minimum(raw, 1.0)
        else:
            seen = there[:, None] & (column >= 0)[None, :]
            bias = tl.load(bias_row + at, mask=seen, other=0.0)
            weight = tl.exp2((score + bias) * LOG2E - lse[:, None])
        d_score = (weight * change).to(key.dtype)
        tl.store(d_bias_row + at, d_score, mask=seen)
        d_query = tl.dot(d_score, key, d_query, input_precision="ieee")
    return d_query, d_span


@triton.jit
def backward_query(
    query_at, key_at, value_at, bias_at, span_at, first_at, hash_key, grad_at, lse_at, delta_at,
    out_at, d_query_at, d_bias_at, d_span_at, segment, memory, padding, stride_lane, stride_key,
    stride_head, bias_lane, bias_head, bias_row, width, threshold, scale,
    NEAREST: tl.constexpr, RAMP: tl.constexpr, OFFSET: tl.constexpr, CLOSED: tl.constexpr,
    DROPOUT: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """Gradients of queries, biases and spans."""
    tiles = tl.cdiv(segment, ROWS)
    tile, lane = tl.program_id(0) % tiles, (tl.program_id(0) // tiles).to(tl.int64)
    head = tl.program_id(1)
    span, far, flat = _distances(span_at, head, width, NEAREST, RAMP, OFFSET, CLOSED)
    row, channel = tile * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    there = row < segment
    offset = ((lane * segment + row[:, None]) * HEADS + head) * WIDTH + channel[None, :]
    query = tl.load(query_at + offset, mask=there[:, None], other=0.0)
    grad = tl.load(grad_at + offset, mask=there[:, None], other=0.0)
    out = tl.load(out_at + offset, mask=there[:, None], other=0.0)
    numbers = (lane * HEADS + head) * segment + row
    lse = tl.load(lse_at + numbers, mask=there, other=0.0)
    # Each softmax's own share of the gradient; the keys' kernel, which runs next, reads it.
    delta = tl.sum(grad.to(tl.float32) * out.to(tl.float32), 1)
    tl.store(delta_at + numbers, delta, mask=there)
    keys = key_at + lane * stride_lane + head * stride_head
    values = value_at + lane * stride_lane + head * stride_head
    rows = lane * bias_lane + head * bias_head + row[:, None] * bias_row
    before, last = memory + padding, width - 1 + NEAREST
    place, columns, first = before + row, before + segment, tl.load(first_at + lane)
    d_query = tl.zeros([ROWS, WIDTH], tl.float32)
    d_span = tl.zeros([ROWS], tl.float32)
    low, inner, outer, end = _keys_of_queries(
        before + tile * ROWS, first, padding, columns, far, flat, NEAREST, ROWS, COLUMNS
    )
    d_query, d_span = _query_tiles(
        d_query, d_span, query, keys, values, stride_key, bias_at + rows, d_bias_at + rows, place,
        numbers, there, grad, lse, delta, low, inner, first, padding, columns, span, far, last,
        hash_key, threshold, scale,
        True, NEAREST, RAMP, OFFSET, CLOSED, DROPOUT, WIDTH, COLUMNS)  # fmt: skip
    d_query, d_span = _query_tiles(
        d_query, d_span, query, keys, values, stride_key, bias_at + rows, d_bias_at + rows, place,
        numbers, there, grad, lse, delta, inner, outer, first, padding, columns, span, far, last,
        hash_key, threshold, scale,
        False, NEAREST, RAMP, OFFSET, CLOSED, DROPOUT, WIDTH, COLUMNS)  # fmt: skip
    d_query, d_span = _query_tiles(
        d_query, d_span, query, keys, values, stride_key, bias_at + rows, d_bias_at + rows, place,
        numbers, there, grad, lse, delta, outer, end, first, padding, columns, span, far, last,
        hash_key, threshold, scale,
        True, NEAREST, RAMP, OFFSET, CLOSED, DROPOUT, WIDTH, COLUMNS)  # fmt: skip
    tl.store(d_query_at + offset, d_query.to(query.dtype), mask=there[:, None])
    if RAMP > 0:
        d_span = tl.where(there, d_span, 0.0)
        tl.store(d_span_at + (lane * HEADS + head) * tiles + tile, tl.sum(d_span, 0) / RAMP)


@triton.jit
def _entry_tiles(
    d_key, d_value, key, value, queries, grads, lse_at, delta_at, bias_at, bias_row, column, before,
    numbers, low, high, segment, first, columns, span, far, last, hash_key, threshold, scale,
    MASKED: tl.constexpr, NEAREST: tl.constexpr, RAMP: tl.constexpr, OFFSET: tl.constexpr,
    DROPOUT: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
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
        score = tl.dot(key, tl.trans(query), input_precision="ieee")
        place = before + row
        at = bias_at + row[None, :] * bias_row + (last - place[None, :] + column[:, None])
        if MASKED:
            raw, seen = _edge(place[None, :], column[:, None], first, columns, span, far,
                              there[None, :], NEAREST, RAMP, OFFSET)  # fmt: skip
            bias = tl.load(at, mask=seen, other=0.0)
            power = tl.minimum((score + bias) * LOG2E - lse[None, :], LARGEST)
            weight = tl.where(seen, tl.exp2(power) * tl.minimum(raw, 1.0), 0.0)
        else:
            weight = tl.exp2((score + tl.load(at)) * LOG2E - lse[None, :])
        change = tl.dot(value, tl.trans(grad), input_precision="ieee")
        left = weight
        if DROPOUT:
            stays = _stays((numbers + row)[None, :], column[:, None], columns, hash_key, threshold)
            change = tl.where(stays, change * scale, 0.0)
            left = tl.where(stays, weight * scale, 0.0)
        d_value = tl.dot(left.to(grad.dtype), grad, d_value, input_precision="ieee")
        d_score = (weight * (change - delta[None, :])).to(query.dtype)
        d_key = tl.dot(d_score, query, d_key, input_precision="ieee")
    return d_key, d_value


@triton.jit
def backward_entries(
    query_at, key_at, value_at, bias_at, span_at, first_at, hash_key, grad_at, lse_at, delta_at,
    d_key_at, d_value_at, segment, memory, padding, stride_lane, stride_key, stride_head, bias_lane,
    bias_head, bias_row, width, threshold, scale,
    NEAREST: tl.constexpr, RAMP: tl.constexpr, OFFSET: tl.constexpr, CLOSED: tl.constexpr,
    DROPOUT: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """Gradients of keys and values, those of the memory included."""
    size = memory + segment
    tiles = tl.cdiv(size, COLUMNS)
    tile, lane = tl.program_id(0) % tiles, (tl.program_id(0) // tiles).to(tl.int64)
    head = tl.program_id(1)
    span, far, flat = _distances(span_at, head, width, NEAREST, RAMP, OFFSET, CLOSED)
    slot, channel = tile * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, WIDTH)
    there = (slot < size)[:, None]
    source = lane * stride_lane + head * stride_head + slot[:, None] * stride_key + channel[None, :]
    key = tl.load(key_at + source, mask=there, other=0.0)
    value = tl.load(value_at + source, mask=there, other=0.0)
    queries = query_at + (lane * segment * HEADS + head) * WIDTH
    grads = grad_at + (lane * segment * HEADS + head) * WIDTH
    numbers = (lane * HEADS + head) * segment
    biases = bias_at + lane * bias_lane + head * bias_head
    before, last, first = memory + padding, width - 1 + NEAREST, tl.load(first_at + lane)
    columns = before + segment
    d_key = tl.zeros([COLUMNS, WIDTH], tl.float32)
    d_value = tl.zeros([COLUMNS, WIDTH], tl.float32)
    # Relative to the segment's first position, where the memory lies below zero.
    nearest, farthest = tile * COLUMNS - memory, tile * COLUMNS - memory + COLUMNS - 1
    low = tl.maximum(nearest + NEAREST, 0) // ROWS * ROWS
    end = tl.minimum(segment, farthest + far + 1)
    inner = (tl.maximum(farthest + NEAREST, 0) + ROWS - 1) // ROWS * ROWS
    outer = tl.maximum(tl.minimum(nearest + flat + 1, segment), 0) // ROWS * ROWS
    whole = (outer > inner) & (tile * COLUMNS + padding >= first)
    whole = whole & (tile * COLUMNS + COLUMNS <= size)
    inner, outer = tl.where(whole, inner, low), tl.where(whole, outer, low)
    d_key, d_value = _entry_tiles(
        d_key, d_value, key, value, queries, grads, lse_at + numbers, delta_at + numbers, biases,
        bias_row, slot + padding, before, numbers, low, inner, segment, first, columns, span, far,
        last, hash_key, threshold, scale,
        True, NEAREST, RAMP, OFFSET, DROPOUT, HEADS, WIDTH, ROWS)  # fmt: skip
    d_key, d_value = _entry_tiles(
        d_key, d_value, key, value, queries, grads, lse_at + numbers, delta_at + numbers, biases,
        bias_row, slot + padding, before, numbers, inner, outer, segment, first, columns, span, far,
        last, hash_key, threshold, scale,
        False, NEAREST, RAMP, OFFSET, DROPOUT, HEADS, WIDTH, ROWS)  # fmt: skip
    d_key, d_value = _entry_tiles(
        d_key, d_value, key, value, queries, grads, lse_at + numbers, delta_at + numbers, biases,
        bias_row, slot + padding, before, numbers, outer, end, segment, first, columns, span, far,
        last, hash_key, threshold, scale,
        True, NEAREST, RAMP, OFFSET, DROPOUT, HEADS, WIDTH, ROWS)  # fmt: skip
    place = ((lane * size + slot[:, None]) * HEADS + head) * WIDTH + channel[None, :]
    tl.store(d_key_at + place, d_key.to(key.dtype), mask=there)
    tl.store(d_value_at + place, d_value.to(key.dtype), mask=there)
