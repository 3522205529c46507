"""Inference on a CPU: blocks of queries over the keys in their window, masked at its edges only.

R queries of a block, C keys at an edge; other axes: see the package's docstring.
"""

import functools
import math

import torch
from torch import Tensor

from sparing.ops.linear import multiply
from sparing.ops.window_attention.reference import Edge

ROWS, LONG = 128, 1024
"""Queries of a block, and the reach from which it has twice as many.

Few, so that its scores stay in the cache and little beyond a short window is computed; but oneDNN
reorders the keys for each block.
"""


def read_head(
    query_BTK: Tensor, entries_2BSK: Tensor, edge: Edge, *, reach: int, uneven: bool
) -> Tensor:
    """Return what one head mixes (B, T, K); the keys and values of a lane must be contiguous.

    `reach` is the farthest distance at which something is seen. With `uneven` lanes, the entries
    of some begin after the first.
    """
    segment, memory = query_BTK.size(1), entries_2BSK.size(2) - query_BTK.size(1)
    query_BTK = query_BTK / math.sqrt(query_BTK.size(2))
    mixed_BTK, span = torch.empty_like(query_BTK), float(edge.span_H)
    rows = 2 * ROWS if reach >= LONG else ROWS
    for start in range(0, segment, rows):
        end = min(start + rows, segment)
        seen = slice(max(0, memory + start - reach), memory + end)
        for lane in range(query_BTK.size(0)):
            keys_SK, values_SK = entries_2BSK[:, lane, seen].unbind()
            scores_RS = multiply(query_BTK[lane, start:end], keys_SK)
            _mask_edges(scores_RS, span, edge.ramp)
            if uneven:
                scores_RS[:, : max(0, int(edge.first_B[lane]) - seen.start)] = -torch.inf
            weights_RS = torch.softmax(scores_RS, dim=-1)
            mixed_BTK[lane, start:end] = multiply(weights_RS, values_SK.T)
    return mixed_BTK


def _mask_edges(scores_RS: Tensor, span: float, ramp: int) -> None:
    """Add log m to the scores of the queries of the last keys, in place.

    It is zero except at both ends of the window.
    """
    rows, keys = scores_RS.shape
    # The last query is the farthest from the first keys.
    fading = max(0, keys - 1 - math.floor(span))
    if fading + rows >= keys:
        scores_RS += _bias(span, ramp, rows, keys, keys)
        return
    if fading:
        scores_RS[:, :fading] += _bias(span, ramp, rows, keys, fading)
    scores_RS[:, -rows:] += _bias(math.inf, ramp, rows, rows, rows)


@functools.lru_cache(maxsize=64)
def _bias(span: float, ramp: int, rows: int, behind: int, columns: int) -> Tensor:
    """Return log m (R, C) for keys of which the first is `behind` - 1 before the last query."""
    # It depends on distances only, so one row of them is shifted for each query.
    distance = behind - 1 - torch.arange(rows + columns - 1, device="cpu")
    inside = ((ramp + span - distance) / ramp).clamp(0, 1) * (distance >= 0)
    return inside.log().unfold(0, columns, 1).flip(0)
