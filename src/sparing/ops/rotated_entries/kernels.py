"""The kernels behind `fused`: some positions of one head each, every number read and written once.

Pointers are moved to the head before anything is read. A vector of K channels is held as its two
halves, of which the rotation pairs the channels.
"""

import triton
import triton.language as tl

EPS = tl.constexpr(1.1920928955078125e-07)
"""Torch's own under a mean of squares."""


@triton.jit
def _rows(rows, HEADS: tl.constexpr, ROWS: tl.constexpr):
    """This program's head, its rows, and which of them exist. Heads of one tile are neighbours."""
    head, tile = tl.program_id(0) % HEADS, tl.program_id(0) // HEADS
    row = tile.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    return head, row, row < rows


@triton.jit
def _halves(x, row, stride, inside, HALF: tl.constexpr):
    """The vectors of some rows in float32, in two halves."""
    place = row[:, None] * stride + tl.arange(0, HALF)[None, :]
    one = tl.load(x + place, mask=inside[:, None], other=0.0).to(tl.float32)
    two = tl.load(x + place + HALF, mask=inside[:, None], other=0.0).to(tl.float32)
    return one, two


@triton.jit
def _store(out, row, stride, inside, one, two, HALF: tl.constexpr):
    place = row[:, None] * stride + tl.arange(0, HALF)[None, :]
    kind = out.dtype.element_ty
    tl.store(out + place, one.to(kind), mask=inside[:, None])
    tl.store(out + place + HALF, two.to(kind), mask=inside[:, None])


@triton.jit
def _turns(cosines, sines, start, row, inside, segment, period, HALF: tl.constexpr):
    """Cosines and sines at the positions of some rows."""
    begun = tl.load(start + row // segment, mask=inside, other=0)
    place = (begun + row % segment) % period
    place = place[:, None] * HALF + tl.arange(0, HALF)[None, :]
    cosine = tl.load(cosines + place, mask=inside[:, None], other=0.0).to(tl.float32)
    sine = tl.load(sines + place, mask=inside[:, None], other=0.0).to(tl.float32)
    return cosine, sine


@triton.jit
def _unit(one, two, HALF: tl.constexpr):
    """Both halves divided by the root of the mean square, and what they were multiplied by."""
    mean = (tl.sum(one * one, 1) + tl.sum(two * two, 1)) / (2 * HALF)
    inverse = tl.rsqrt(mean + EPS)[:, None]
    return one * inverse, two * inverse, inverse


@triton.jit
def _rotated(one, two, cosine, sine, HALF: tl.constexpr):
    one, two, _ = _unit(one, two, HALF)
    return one * cosine + two * sine, two * cosine - one * sine


@triton.jit
def forward(
    three, gain, cosines, sines, start, before, query, fresh, rows, segment, period,
    HEADS: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    """Queries and entries from what was projected; keys SHIFT positions, none or one, late."""
    head, row, inside = _rows(rows, HEADS, ROWS)
    own, line = head * 2 * HALF, HEADS * 2 * HALF
    cosine, sine = _turns(cosines, sines, start, row, inside, segment, period, HALF)
    one, two = _halves(three + own, row, 3 * line, inside, HALF)
    one, two = _rotated(one, two, cosine, sine, HALF)
    scale = tl.load(gain + head).to(tl.float32)
    _store(query + own, row, line, inside, one * scale, two * scale, HALF)
    late = inside & (row % segment >= SHIFT)
    one, two = _halves(three + own + line, row - SHIFT, 3 * line, late, HALF)
    if SHIFT:
        first = inside & (row % segment == 0)
        one_before, two_before = _halves(before + own, row // segment, line, first, HALF)
        one, two = one + one_before, two + two_before
    one, two = _rotated(one, two, cosine, sine, HALF)
    _store(fresh + own, row, 2 * line, inside, one, two, HALF)
    one, two = _halves(three + own + 2 * line, row, 3 * line, inside, HALF)
    _store(fresh + own + line, row, 2 * line, inside, one, two, HALF)


@triton.jit
def _unrotated(
    x, row, stride, d_out, d_row, d_stride, inside, cosine, sine, scale, HALF: tl.constexpr
):  # fmt: skip
    """Gradient of the vectors before norm and rotation, and of each row's scale."""
    d_one, d_two = _halves(d_out, d_row, d_stride, inside, HALF)
    d_one, d_two = d_one * cosine - d_two * sine, d_one * sine + d_two * cosine
    one, two = _halves(x, row, stride, inside, HALF)
    one, two, inverse = _unit(one, two, HALF)
    along = tl.sum(d_one * one, 1) + tl.sum(d_two * two, 1)
    share = along[:, None] / (2 * HALF)
    factor = inverse * scale
    return (d_one - one * share) * factor, (d_two - two * share) * factor, along


@triton.jit
def backward(
    three, gain, cosines, sines, start, d_query, d_fresh, d_three, d_gain, rows, segment, period,
    HEADS: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    """Gradients of what was projected, and a partial one of the gain."""
    head, row, inside = _rows(rows, HEADS, ROWS)
    own, line = head * 2 * HALF, HEADS * 2 * HALF
    cosine, sine = _turns(cosines, sines, start, row, inside, segment, period, HALF)
    scale = tl.load(gain + head).to(tl.float32)
    one, two, along = _unrotated(
        three + own, row, 3 * line, d_query + own, row, line, inside, cosine, sine, scale, HALF
    )
    _store(d_three + own, row, 3 * line, inside, one, two, HALF)
    tl.store(d_gain + tl.program_id(0), tl.sum(along))
    # The last key of a segment is read in the next one, which sends no gradient back.
    later = row + SHIFT
    follows = inside & (later % segment >= SHIFT)
    if SHIFT:
        cosine, sine = _turns(cosines, sines, start, later, follows, segment, period, HALF)
    one, two, _ = _unrotated(
        three + own + line, row, 3 * line, d_fresh + own, later, 2 * line, follows, cosine, sine,
        1.0, HALF,
    )  # fmt: skip
    _store(d_three + own + line, row, 3 * line, inside, one, two, HALF)
    one, two = _halves(d_fresh + own + line, row, 2 * line, inside, HALF)
    _store(d_three + own + 2 * line, row, 3 * line, inside, one, two, HALF)
