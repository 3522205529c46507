"""The kernels behind `fused`: some channels of one lane each, tile after tile of positions.

Within a tile the recurrence is an associative scan; from tile to tile one row is carried on.
Positions beyond the segment change nothing: they keep what they find. While one tile is scanned,
STAGES - 1 more are on their way from memory.
"""

import triton
import triton.language as tl


@triton.jit
def _then(factor_1, offset_1, factor_2, offset_2):
    """Two steps c -> factor c + offset as one."""
    return factor_1 * factor_2, offset_1 * factor_2 + offset_2


@triton.jit
def _tanh(x):
    square = x * x
    # The difference of two numbers near one would keep few digits of a small one.
    small = x * (1 - square * (1 / 3 - square * (2 / 15)))
    return tl.where(square < 0.01, small, 2 * tl.sigmoid(2 * x) - 1)


@triton.jit
def _column(DIM: tl.constexpr, CHANNELS: tl.constexpr):
    """This program's lane, its channels, and which of them exist."""
    tiles = tl.cdiv(DIM, CHANNELS)
    lane = (tl.program_id(0) // tiles).to(tl.int64)
    channel = tl.program_id(0) % tiles * CHANNELS + tl.arange(0, CHANNELS)
    return lane, channel, channel < DIM


@triton.jit
def _rows(x, time, stride, channel, inside):
    """A tile in float32; zero where there is nothing."""
    place = time[:, None].to(tl.int64) * stride + channel[None, :]
    return tl.load(x + place, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _store(out, time, stride, channel, inside, tile):
    place = time[:, None].to(tl.int64) * stride + channel[None, :]
    tl.store(out + place, tile.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _row_of(tile, number, TIMES: tl.constexpr):
    """One row of a tile."""
    return tl.sum(tl.where((tl.arange(0, TIMES) == number)[:, None], tile, 0.0), 0)


@triton.jit
def _scan(candidate, forget, cell):
    """The cells of a tile, from the one before it."""
    factor, offset = tl.associative_scan((forget, (1 - forget) * candidate), 0, _then)
    return factor * cell[None, :] + offset


@triton.jit
def forward(
    gates, initial, y, starts, last, segment,
    DIM: tl.constexpr, TIMES: tl.constexpr, CHANNELS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Outputs, the last cell, and the cell before each tile, which the backward pass needs."""
    lane, channel, exists = _column(DIM, CHANNELS)
    gates += lane * segment * 3 * DIM
    y += lane * segment * DIM
    starts += lane * tl.cdiv(segment, TIMES) * DIM
    cell = tl.load(initial + lane * DIM + channel, mask=exists, other=0.0)
    for start in tl.range(0, segment, TIMES, num_stages=STAGES):
        time = start + tl.arange(0, TIMES)
        inside = (time < segment)[:, None] & exists[None, :]
        candidate = _tanh(_rows(gates, time, 3 * DIM, channel, inside))
        forget = tl.sigmoid(_rows(gates + DIM, time, 3 * DIM, channel, inside))
        output = tl.sigmoid(_rows(gates + 2 * DIM, time, 3 * DIM, channel, inside))
        found = _scan(candidate, tl.where(inside, forget, 1.0), cell)
        tl.store(starts + start // TIMES * DIM + channel, cell, mask=exists)
        _store(y, time, DIM, channel, inside, output * found)
        cell = _row_of(found, TIMES - 1, TIMES)
    tl.store(last + lane * DIM + channel, cell, mask=exists)


@triton.jit
def backward(
    gates, starts, d_y, d_last, d_gates, d_initial, segment,
    DIM: tl.constexpr, TIMES: tl.constexpr, CHANNELS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Gradients of the gates and of the first cells; the scan runs from the last tile to the first.

    The cells of a tile are computed again. What is carried is the gradient of a tile's first cell.
    """
    lane, channel, exists = _column(DIM, CHANNELS)
    gates += lane * segment * 3 * DIM
    d_gates += lane * segment * 3 * DIM
    d_y += lane * segment * DIM
    tiles = tl.cdiv(segment, TIMES)
    starts += lane * tiles * DIM
    d_cell = tl.load(d_last + lane * DIM + channel, mask=exists, other=0.0)
    for number in tl.range(0, tiles, num_stages=STAGES):
        tile = tiles - 1 - number
        time = tile * TIMES + tl.arange(0, TIMES)
        inside = (time < segment)[:, None] & exists[None, :]
        candidate = _tanh(_rows(gates, time, 3 * DIM, channel, inside))
        forget = tl.sigmoid(_rows(gates + DIM, time, 3 * DIM, channel, inside))
        output = tl.sigmoid(_rows(gates + 2 * DIM, time, 3 * DIM, channel, inside))
        cell = tl.load(starts + tile * DIM + channel, mask=exists, other=0.0)
        found = _scan(candidate, tl.where(inside, forget, 1.0), cell)
        pull = _rows(d_y, time, DIM, channel, inside)
        # Through the output gate straight into a cell, and from the cell after it, if any.
        follows = inside & (time + 1 < segment)[:, None]
        later = tl.sigmoid(_rows(gates + DIM, time + 1, 3 * DIM, channel, follows))
        later = tl.where(follows, later, 1.0)
        factor, offset = tl.associative_scan((later, pull * output), 0, _then, reverse=True)
        d_found = factor * d_cell[None, :] + offset
        d_candidate = d_found * (1 - forget) * (1 - candidate * candidate)
        # found - candidate = forget * (cell before - candidate), so that cell is not needed.
        d_forget = d_found * (1 - forget) * (found - candidate)
        d_output = pull * found * output * (1 - output)
        _store(d_gates, time, 3 * DIM, channel, inside, d_candidate)
        _store(d_gates + DIM, time, 3 * DIM, channel, inside, d_forget)
        _store(d_gates + 2 * DIM, time, 3 * DIM, channel, inside, d_output)
        d_cell = _row_of(d_found, 0, TIMES)
    forget = tl.sigmoid(tl.load(gates + DIM + channel, mask=exists, other=0.0).to(tl.float32))
    tl.store(d_initial + lane * DIM + channel, d_cell * forget, mask=exists)
