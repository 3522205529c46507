"""Curves of one or several runs, drawn from their journals."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparing.errors import UserError
from sparing.plot.figure import (
    COLOURS,
    GREY,
    add_footer,
    drawable_text,
    label_axes,
    legend_name,
    line_styles,
    new_figure,
    shorten,
    wrap_text,
)
from sparing.plot.series import (
    Event,
    RunJournal,
    Series,
    XAxis,
    bytes_per_token,
    events,
    read_journals,
    series,
)

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

X_LABELS = {
    "steps": "optimizer steps",
    "bytes": "training text read (bytes)",
    "minutes": "training time (minutes)",
}
TRAIN: dict[str, Any] = {"linewidth": 1.0, "alpha": 0.7}
VALID: dict[str, Any] = {"linewidth": 1.8, "marker": "o", "markersize": 4.5, "zorder": 3}
EVENT: dict[str, Any] = {
    "color": "#333333",
    "linestyle": "none",
    "markersize": 6,
    "clip_on": False,
    "zorder": 5,
}
MARKERS = "vXDPs*"
DASHES = ((0, (6, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), (0, (3, 1)))
LONG = 20
"""A curve with fewer points is never cut off by the frame."""


@dataclass(frozen=True, slots=True)
class Line:
    """A horizontal line to compare with."""

    bits_per_byte: float
    label: str


PANELS = {
    "lr": "learning rate",
    "grad_norm": "gradient norm",
    "tokens_per_s": "speed (bytes/s)",
}
"""The small panels under the large one: field of the journal, and its title."""


def draw_curves(
    runs: Sequence[Path],
    axis: XAxis = "steps",
    lines: Sequence[Line] = (),
    groups: Sequence[str] | None = None,
) -> "Figure":
    """Bits per byte, learning rate, gradient norm and speed of the runs, in one picture.

    Runs with the same name in `groups` share a colour.
    """
    journals = read_journals(runs, groups)
    figure = new_figure(11.5, 6.9 + 0.12 * len(journals))
    grid = figure.add_gridspec(2, len(PANELS), height_ratios=(2.3, 1))
    main = figure.add_subplot(grid[0, :])
    handles = [*_draw_loss(main, journals, axis, lines), *_draw_lines(main, lines)]
    smaller = [figure.add_subplot(grid[1, at], sharex=main) for at in range(len(PANELS))]
    for axes, field in zip(smaller, PANELS, strict=True):
        _draw_panel(axes, field, journals, axis)
    handles += _draw_events([main, *smaller], journals, axis)
    _number_x(main, axis)
    figure.legend(handles=handles, loc="outside right upper", frameon=False, fontsize=9)
    title = drawable_text(shorten(_title(journals), 80))
    main.set_title(title, loc="left", fontsize=12, fontweight="bold")
    add_footer(figure, [journal.origin for journal in journals])
    return figure


def parse_line(text: str) -> Line:
    """Parse `1.076:SHA-RNN paper`; the label may be left out."""
    figure, _, label = text.partition(":")
    try:
        value = float(figure)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"cannot read line {text!r}; write it as 1.076:label (bits per byte)")
    return Line(value, label.strip().strip("\"'"))


def panel_series(journal: RunJournal, field: str, axis: XAxis) -> Series:
    """The curve of a panel; speed in bytes, so runs with different vocabularies compare."""
    found = series(journal, "train", field, axis)
    if field != "tokens_per_s" or not found.y:
        return found
    size = bytes_per_token(journal)
    return Series(found.x, [size * y for y in found.y])


def bounds(curves: Sequence[tuple[Series, Series]], lines: Sequence[Line]) -> tuple[float, float]:
    """Lowest and highest bits per byte to show, given the train and valid curve of each run.

    The first tenth of a long train curve, its steep part, may be cut off by the frame.
    """
    shown = [line.bits_per_byte for line in lines]
    for train, valid in curves:
        skipped = len(train.y) // 10 if len(train.y) >= LONG else 0
        shown += [y for y in [*train.y[skipped:], *valid.y] if math.isfinite(y)]
    if not shown:
        return 0.0, 8.0
    margin = 0.05 * (max(shown) - min(shown)) or 0.1
    return min(shown) - margin, max(shown) + margin


def group_events(found: Sequence[Event]) -> dict[str, list[Event]]:
    """Group events by what happened, ignoring numbers; the keys are texts for the legend."""
    kinds: dict[str, list[Event]] = {}
    for event in found:
        kinds.setdefault(re.sub(r"\d+", "…", event.what), []).append(event)
    return {
        f"step {group[0].step}: {group[0].what}"
        if len(group) == 1
        else f"{len(group)} times: {kind}": group
        for kind, group in kinds.items()
    }


def has_different_corpora(journals: Sequence[RunJournal]) -> bool:
    """Whether the runs were trained on different texts, whose bits per byte do not compare."""
    return len({journal.corpus for journal in journals if journal.corpus}) > 1


def _title(journals: Sequence[RunJournal]) -> str:
    if len(journals) == 1:
        return journals[0].name
    different = has_different_corpora(journals)
    remark = " of different corpora: levels do not compare" if different else ""
    return f"{len(journals)} runs{remark}"


def _draw_loss(
    axes: "Axes", journals: Sequence[RunJournal], axis: XAxis, lines: Sequence[Line]
) -> Iterator["Artist"]:
    """Draw, and yield the entries of the legend: colours are runs, strokes are splits."""
    from matplotlib.lines import Line2D

    curves = [
        (series(d, "train", "bits_per_byte", axis), series(d, "valid", "bits_per_byte", axis))
        for d in journals
    ]
    mixed = has_different_corpora(journals)
    drawn = zip(journals, curves, line_styles([journal.group for journal in journals]), strict=True)
    for journal, (train, valid), pen in drawn:
        axes.plot(train.x, train.y, **pen, **TRAIN, marker=_dot(train))
        axes.plot(valid.x, valid.y, **pen, **VALID)
        if len(journals) > 1:
            corpus = f" ({shorten(journal.corpus, 24)})" if mixed else ""
            yield Line2D([], [], **pen, linewidth=3, label=legend_name(journal.name, corpus))
    colour = COLOURS[0] if len(journals) == 1 else GREY
    yield Line2D([], [], color=colour, label="train", **TRAIN)
    yield Line2D([], [], color=colour, label="valid", **VALID)
    axes.set_ylim(*bounds(curves, lines))
    label_axes(axes, x=X_LABELS[axis], y="bits per byte")


def _draw_lines(axes: "Axes", lines: Sequence[Line]) -> Iterator["Artist"]:
    for index, line in enumerate(lines):
        dashes = DASHES[index % len(DASHES)]
        name = drawable_text(wrap_text(f"{line.bits_per_byte:g} {line.label}"))
        yield axes.axhline(
            line.bits_per_byte, color="#333333", linewidth=1.1, linestyle=dashes, label=name
        )


def _draw_panel(axes: "Axes", field: str, journals: Sequence[RunJournal], axis: XAxis) -> None:
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    seen: list[float] = []
    for journal, pen in zip(
        journals, line_styles([journal.group for journal in journals]), strict=True
    ):
        found = panel_series(journal, field, axis)
        axes.plot(found.x, found.y, **pen, linewidth=1.0, marker=_dot(found))
        seen += [y for y in found.y if math.isfinite(y)]
    label_axes(axes, x=X_LABELS[axis], y="")
    axes.set_title(PANELS[field], loc="left", fontsize=10)
    if not seen:
        axes.text(0.5, 0.5, "not in the journal", ha="center", color=GREY, transform=axes.transAxes)
    elif field == "grad_norm" and min(seen) > 0:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter("{x:g}")
    else:
        axes.set_ylim(0, 1.1 * max(seen) or 1)
        axes.yaxis.set_major_formatter("{x:g}" if field == "lr" else EngFormatter(sep=""))


def _draw_events(
    all_axes: Sequence["Axes"], journals: Sequence[RunJournal], axis: XAxis
) -> Iterator["Artist"]:
    """Draw a dotted line through every panel, and a mark at the top of the first."""
    found = [event for journal in journals for event in events(journal, axis)]
    for index, (words, group) in enumerate(group_events(found).items()):
        places = [event.x for event in group]
        for axes in all_axes:
            for x in places:
                axes.axvline(x, color=GREY, linewidth=0.7, linestyle=":", zorder=1)
        mark = MARKERS[index % len(MARKERS)]
        (handle,) = all_axes[0].plot(
            places,
            [1 - 0.035 * index] * len(places),
            transform=all_axes[0].get_xaxis_transform(),
            label=drawable_text(wrap_text(words)),
            **(EVENT | {"marker": mark}),
        )
        yield handle


def _dot(curve: Series) -> str:
    """A marker for a single point, which has no line."""
    return "." if len(curve.x) == 1 else ""


def _number_x(axes: "Axes", axis: XAxis) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=axis == "steps"))
    if axis != "minutes":
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
