"""How far back each head looks, and how it came to. Windows include the ramp."""

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from sparing.errors import UserError
from sparing.plot.figure import GREY, dress, new_figure, plain, small_print
from sparing.plot.series import Diary, number, series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = re.compile(r"span\.(\d+)\.(\d+)")
Head = tuple[int, int]


def head_windows(telemetry: Mapping[str, float]) -> dict[Head, float]:
    """Window of every head by layer and number, from what a model tells of itself."""
    windows = {
        (int(found[1]), int(found[2])): value
        for name, value in telemetry.items()
        if (found := NAME.fullmatch(name))
    }
    if not windows:
        raise UserError("this model has no learned spans; there is nothing to draw")
    return dict(sorted(windows.items()))


def last_noted(diary: Diary) -> dict[str, float]:
    """The windows of the journal's last `train` entry that has any; else none."""
    for entry in reversed(diary.entries):
        windows = {name: number(value) for name, value in entry.items() if NAME.fullmatch(name)}
        if windows and entry["kind"] == "train" and all(map(math.isfinite, windows.values())):
            return windows
    return {}


def draw_spans(windows: Mapping[Head, float], title: str, origin: str) -> "Figure":
    """Bars of the heads, layer after layer, each layer's in falling order."""
    # Side by side: in a stack most layers are not attention.
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
    dress(axes, x="layer", y="window of a head (positions)")
    axes.set_xticks(range(len(layers)), [str(1 + layer) for layer in layers])
    _scale(axes, windows)
    figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    axes.set_title(plain(f"Spans of {title}"), loc="left", fontsize=12, fontweight="bold")
    small_print(figure, [origin, "one bar per head, the ramp included"])
    return figure


def draw_course(diary: Diary) -> "Figure":
    """A line per head over the steps of a run, coloured by layer."""
    names = sorted({name for entry in diary.entries for name in entry if NAME.fullmatch(name)})
    if not names:
        raise UserError(
            f"run {diary.name} has noted no spans in its journal yet: "
            "train it for at least train.log_every steps"
        )
    heads = {name: _head(name) for name in names}
    depth = 1 + max(layer for layer, _ in heads.values())
    figure, last = new_figure(9.5, 5.2), {}
    axes = figure.add_subplot()
    for name in sorted(names, key=heads.__getitem__):
        layer, number = heads[name]
        curve = series(diary, "train", name, "steps")
        label = f"layer {layer + 1}" if number == 0 else None
        axes.plot(curve.x, curve.y, color=_colour(layer, depth), linewidth=1, label=label)
        last[layer, number] = max((y for y in curve.y if math.isfinite(y)), default=1.0)
    dress(axes, x="steps", y="window of a head (positions)")
    _scale(axes, last)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8, ncols=1 + depth // 25)
    title = plain(f"Spans over training of {diary.name}")
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold")
    small_print(figure, [diary.origin, "one line per head, the ramp included"])
    return figure


def _head(name: str) -> Head:
    found = NAME.fullmatch(name)
    assert found is not None
    return int(found[1]), int(found[2])


def _colour(layer: int, depth: int) -> tuple[float, float, float, float]:
    """Dark for the first layers, bright for the last, short of the yellow that paper swallows."""
    from matplotlib import colormaps

    red, green, blue, opaque = colormaps["viridis"](0.85 * layer / max(1, depth - 1))
    return float(red), float(green), float(blue), float(opaque)


def _scale(axes: "Axes", windows: Mapping[Head, float]) -> None:
    """Powers of two: most heads are short, and a few a hundred times longer."""
    from matplotlib.ticker import FuncFormatter, NullLocator

    least, most = min(windows.values()), max(windows.values())
    axes.set_yscale("log", base=2)
    axes.set_ylim(2 ** math.floor(math.log2(max(1.0, least)) - 0.5), 1.2 * max(2.0, most))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_minor_locator(NullLocator())
