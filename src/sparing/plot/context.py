"""What context is worth: loss against the number of tokens a model has read."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparing.errors import UserError
from sparing.evaluate.context import ContextPoint
from sparing.plot.figure import dress, legend_name, new_figure, pen, small_print
from sparing.plot.series import Series

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class ContextCurve:
    """One run's loss against context."""

    name: str
    origin: str
    points: Sequence[ContextPoint]


def context_series(points: Sequence[ContextPoint]) -> Series:
    """Bits per byte at the middle, on a logarithmic axis, of each range of context lengths."""
    return Series(
        [math.sqrt(point.low * point.high) for point in points],
        [point.bits_per_byte for point in points],
    )


def draw_context(curves: Sequence[ContextCurve]) -> "Figure":
    """Bits per byte against available context, one line per run."""
    from matplotlib.ticker import LogLocator, NullFormatter

    if not curves:
        raise UserError("name at least one run to draw")
    figure = new_figure(9.5, 5.2)
    axes = figure.add_subplot()
    for index, curve in enumerate(curves):
        found = context_series(curve.points)
        style = {**pen(index), "marker": "o", "markersize": 4}
        axes.plot(found.x, found.y, label=legend_name(curve.name), **style)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(LogLocator(base=2, numticks=20))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    dress(axes, x="context available (tokens, from a fresh state)", y="bits per byte")
    figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    axes.set_title("Loss against context", loc="left", fontsize=12, fontweight="bold")
    small_print(figure, [curve.origin for curve in curves])
    return figure
