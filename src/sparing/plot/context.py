"""How a model uses context: its loss against context length, and how far back each head looks."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparing.errors import UserError
from sparing.evaluation.context import ContextPoint
from sparing.plot.figure import (
    GREY,
    add_footer,
    drawable_text,
    label_axes,
    legend_name,
    line_style,
    new_figure,
)
from sparing.plot.series import RunJournal, Series, finite_or_nan, series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SPAN_NAME = re.compile(r"span\.(\d+)\.(\d+)")
Head = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ContextCurve:
    """One run's loss against context."""

    name: str
    origin: str
    points: Sequence[ContextPoint]


def context_series(points: Sequence[ContextPoint]) -> Series:
    """Bits per byte at the geometric middle of each range of context lengths."""
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
        style = {**line_style(index), "marker": "o", "markersize": 4}
        axes.plot(found.x, found.y, label=legend_name(curve.name), **style)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(LogLocator(base=2, numticks=20))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    label_axes(axes, x="context available (tokens, from a fresh state)", y="bits per byte")
    figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    axes.set_title("Loss against context", loc="left", fontsize=12, fontweight="bold")
    add_footer(figure, [curve.origin for curve in curves])
    return figure


def head_windows(telemetry: Mapping[str, float]) -> dict[Head, float]:
    """Window of every head, ramp included, by layer and number, from a model's telemetry."""
    windows = {
        (int(found[1]), int(found[2])): value
        for name, value in telemetry.items()
        if (found := SPAN_NAME.fullmatch(name))
    }
    if not windows:
        raise UserError("this model has no learned spans; there is nothing to draw")
    return dict(sorted(windows.items()))


def last_spans(journal: RunJournal) -> dict[str, float]:
    """The windows in the last `train` entry that has any; empty if there is none."""
    for entry in reversed(journal.entries):
        windows = {
            name: finite_or_nan(value) for name, value in entry.items() if SPAN_NAME.fullmatch(name)
        }
        if windows and entry["kind"] == "train" and all(map(math.isfinite, windows.values())):
            return windows
    return {}


def draw_spans(windows: Mapping[Head, float], title: str, origin: str) -> "Figure":
    """A bar per head, sorted within each layer."""
    # Only layers with heads get a place: in a stack most layers are not attention.
    layers = sorted({layer for layer, _ in windows})
    figure = new_figure(max(6.0, 2.5 + 0.55 * len(layers)), 4.6)
    axes = figure.add_subplot()
    for place, layer in enumerate(layers):
        heads = sorted((w for (own, _), w in windows.items() if own == layer), reverse=True)
        width = 0.8 / len(heads)
        places = [place - 0.4 + width * (at + 0.5) for at in range(len(heads))]
        axes.bar(places, heads, width=0.9 * width, color=_colour(place, len(layers)))
    mean = sum(windows.values()) / len(windows)
    axes.axhline(mean, color=GREY, linestyle="--", linewidth=1, label=f"mean {mean:,.0f}")
    label_axes(axes, x="layer", y="window of a head (positions)")
    axes.set_xticks(range(len(layers)), [str(1 + layer) for layer in layers])
    _scale(axes, windows)
    figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    axes.set_title(drawable_text(f"Spans of {title}"), loc="left", fontsize=12, fontweight="bold")
    add_footer(figure, [origin, "one bar per head; windows include the ramp"])
    return figure


def draw_span_history(journal: RunJournal) -> "Figure":
    """A line per head over the steps of a run, coloured by layer."""
    names = sorted(
        {name for entry in journal.entries for name in entry if SPAN_NAME.fullmatch(name)}
    )
    if not names:
        raise UserError(
            f"run {journal.name} has no spans in its journal yet: "
            "train it for at least train.log_every steps"
        )
    heads = {name: _head(name) for name in names}
    depth = 1 + max(layer for layer, _ in heads.values())
    figure, last = new_figure(9.5, 5.2), {}
    axes = figure.add_subplot()
    for name in sorted(names, key=heads.__getitem__):
        layer, number = heads[name]
        curve = series(journal, "train", name, "steps")
        label = f"layer {layer + 1}" if number == 0 else None
        axes.plot(curve.x, curve.y, color=_colour(layer, depth), linewidth=1, label=label)
        last[layer, number] = max((y for y in curve.y if math.isfinite(y)), default=1.0)
    label_axes(axes, x="steps", y="window of a head (positions)")
    _scale(axes, last)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8, ncols=1 + depth // 25)
    title = drawable_text(f"Spans over training of {journal.name}")
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold")
    add_footer(figure, [journal.origin, "one line per head; windows include the ramp"])
    return figure


def _head(name: str) -> Head:
    found = SPAN_NAME.fullmatch(name)
    assert found is not None
    return int(found[1]), int(found[2])


def _colour(layer: int, depth: int) -> tuple[float, float, float, float]:
    """Dark for the first layers, bright for the last, without yellow, which is hard to see."""
    from matplotlib import colormaps

    red, green, blue, opaque = colormaps["viridis"](0.85 * layer / max(1, depth - 1))
    return float(red), float(green), float(blue), float(opaque)


def _scale(axes: "Axes", windows: Mapping[Head, float]) -> None:
    """A logarithmic axis: most spans are short, and a few are a hundred times longer."""
    from matplotlib.ticker import FuncFormatter, NullLocator

    least, most = min(windows.values()), max(windows.values())
    axes.set_yscale("log", base=2)
    axes.set_ylim(2 ** math.floor(math.log2(max(1.0, least)) - 0.5), 1.2 * max(2.0, most))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_minor_locator(NullLocator())
