"""The race: bits per byte against training time, our runs and those of others."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparing.errors import UserError
from sparing.plot.figure import (
    GREY,
    add_footer,
    drawable_text,
    label_axes,
    line_style,
    new_figure,
    shorten,
)
from sparing.plot.labels import Label, write_labels
from sparing.plot.published import PUBLISHED, Published
from sparing.plot.series import Series, origin, read_journals, series, short_names, step_to_x
from sparing.runs.folder import open_run
from sparing.runs.results import SplitResult, device_of, read_split_results
from sparing.units import format_duration, pluralize

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CORPUS = "enwik8"
"""The corpus of the published results."""
TICKS = {
    1 / 60: "1 s",
    1 / 6: "10 s",
    1: "1 min",
    5: "5 min",
    20: "20 min",
    60: "1 h",
    240: "4 h",
    1440: "1 day",
    10080: "1 week",
}
LEVELS = (0.9, 0.95, 1, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5, 1.75, 2, 2.5, 3, 4, 5, 6, 8)
DARK = "#444444"
SECOND = 1 / 60
FOREVER = 30 * 24 * 60.0
SHORT = 60.0
"""Below this many minutes, a published point is labelled beside it, not in the margin."""
LABEL_SPACE = 120.0
"""Space to the left of a point for its label, as a factor of time."""
TEST: dict[str, Any] = {"marker": "o", "markersize": 8, "linestyle": "none", "zorder": 6}
KEY: dict[str, Any] = {
    "loc": "lower left",
    "bbox_to_anchor": (-0.012, 1),
    "ncols": 5,
    "fontsize": 9,
    "frameon": False,
    "borderaxespad": 0.2,
    "columnspacing": 1.4,
}
VALID: dict[str, Any] = {**TEST, "markerfacecolor": "white", "markersize": 6, "zorder": 5}


@dataclass(frozen=True, slots=True)
class RaceEntry:
    """A run of ours: its curve, and its final results."""

    name: str
    origin: str
    device: str | None
    curve: Series
    valid: tuple[float, SplitResult] | None
    """Minutes, and the result after them."""
    test: tuple[float, SplitResult] | None

    @property
    def end(self) -> tuple[float, float]:
        """Minutes and bits per byte of the run's last point."""
        minutes, result = self.test or self.valid or (math.nan, None)
        return minutes, result.bits_per_byte if result else math.nan

    @property
    def label(self) -> str:
        """Its name, time and results."""
        parts = [f"{shorten(self.name, 36)}, {format_duration(self.end[0])}"]
        splits = {"test": self.test, "valid": self.valid}
        results = [_result_text(name, at[1]) for name, at in splits.items() if at is not None]
        return "\n".join([*parts, ", ".join(results)])


def draw_race(runs: Sequence[Path], published: Sequence[Published] = PUBLISHED) -> "Figure":
    """Our valid curves, each with its final results, among the points and curves of others."""
    entries = read_race_entries(runs)
    figure = new_figure(12, 7 + 0.12 * len(entries))
    axes = figure.add_subplot()
    labels = [_entry_label(entry, index) for index, entry in enumerate(entries)]
    labels += map(_published_label, published)
    _scale(axes, entries, labels)
    for other in published:
        _draw_published(axes, other)
    for index, entry in enumerate(entries):
        _draw_entry(axes, entry, index)
    title = f"{CORPUS}: bits per byte against training time"
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold", pad=26)
    # Between title and frame, where no curve can cross it.
    axes.legend(handles=list(_key(entries)), **KEY)
    add_footer(figure, [entry.origin for entry in entries])
    write_labels(axes, labels)
    return figure


def read_race_entries(runs: Sequence[Path]) -> list[RaceEntry]:
    """Read the runs; refuse those that were not trained on the published corpus."""
    folders = [open_run(run) for run in runs]
    recipes = []
    for folder in folders:
        config = folder.config()
        if config.data.corpus != CORPUS:
            raise UserError(
                f"run {folder.path} was trained on {config.data.corpus}; race is for {CORPUS} only"
            )
        recipes.append(config.recipe)
    # Several runs of one recipe are named by their folders.
    names = recipes if len(set(recipes)) == len(recipes) else short_names(runs)
    return [_race_entry(name, run) for name, run in zip(names, runs, strict=True)]


def _race_entry(name: str, run: Path) -> RaceEntry:
    (journal,) = read_journals([run])
    place = step_to_x(journal, "minutes")
    curve = series(journal, "valid", "bits_per_byte", "minutes")
    # A logarithmic axis has no zero.
    ends = [
        None if result is None else (max(place(result.step), SECOND), result)
        for result in read_split_results(open_run(run))
    ]
    if ends == [None, None]:
        raise UserError(f"run {run} has no valid or test result yet; run `sparing evaluate`")
    return RaceEntry(name, origin(run), device_of(open_run(run)), curve, ends[0], ends[1])


def _result_text(split: str, result: SplitResult) -> str:
    remarks = [] if result.whole else [f"first {pluralize(result.bytes, 'byte')}"]
    remarks += [] if result.protocol == "bytes" else [result.protocol]
    suffix = f" ({', '.join(remarks)})" if remarks else ""
    return f"{result.bits_per_byte:.4f} {split}{suffix}"


def _scale(axes: "Axes", entries: Sequence[RaceEntry], labels: Sequence[Label]) -> None:
    """Show every result and label on logarithmic axes; the steep first minutes are cut off."""
    label_axes(axes, x="training time, logarithmic", y="bits per byte, logarithmic")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_ticks(list(TICKS), list(TICKS.values()))
    axes.yaxis.set_ticks(list(LEVELS), [f"{level:g}" for level in LEVELS])
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(_no_ticks())
    starts = [max(x, SECOND) / 1.5 for entry in entries for x in entry.curve.x]
    starts += [label.end[0] / LABEL_SPACE for label in labels if not label.outside]
    axes.set_xlim(min([0.5, *starts]), max(FOREVER, *(2 * entry.end[0] for entry in entries)))
    bits = [label.end[1] for label in labels]
    axes.set_ylim(0.98 * min(bits), max(1.4, 1.05 * max(bits)))


def _no_ticks() -> Any:
    from matplotlib.ticker import NullLocator

    return NullLocator()


def _draw_published(axes: "Axes", other: Published) -> None:
    if other.minutes is None:
        axes.axhline(other.bits_per_byte, color=GREY, linewidth=0.9, linestyle=":", zorder=1)
        return
    if len(other.valid) > 1:
        axes.plot(*zip(*other.valid, strict=True), color=GREY, linewidth=1.2, zorder=2)
    if other.valid:
        axes.plot(*other.valid[-1], color=GREY, **VALID)
    axes.plot(other.minutes, [other.bits_per_byte] * 2, color=GREY, linewidth=2.5, zorder=2)
    axes.plot(_middle(other.minutes), other.bits_per_byte, color=GREY, **TEST)


def _draw_entry(axes: "Axes", entry: RaceEntry, index: int) -> None:
    axes.plot(entry.curve.x, entry.curve.y, **line_style(index), linewidth=1.8, zorder=4)
    colour = {"color": line_style(index)["color"]}
    if entry.valid is not None:
        axes.plot(entry.valid[0], entry.valid[1].bits_per_byte, **colour, **VALID)
    if entry.test is not None:
        axes.plot(entry.test[0], entry.test[1].bits_per_byte, **colour, **TEST)


def _entry_label(entry: RaceEntry, index: int) -> Label:
    return Label(entry.label, entry.end, str(line_style(index)["color"]))


def _published_label(other: Published) -> Label:
    """A label in the margin, unless the point is among our runs."""
    minutes = FOREVER if other.minutes is None else _middle(other.minutes)
    first = f"{other.name}, {_format_bits(other.bits_per_byte)}, {other.parameters}"
    details = ", ".join(filter(None, [other.time, other.hardware, other.reading]))
    place = (minutes, other.bits_per_byte)
    return Label(f"{first}\n{details}", place, DARK, outside=minutes >= SHORT)


def _format_bits(bits: float) -> str:
    """The figure as published, with two decimals at least: 1.00, not 1."""
    return max(f"{bits:g}", f"{bits:.2f}", key=len)


def _key(entries: Sequence[RaceEntry]) -> Iterator["Artist"]:
    from matplotlib.lines import Line2D

    devices = ", ".join(dict.fromkeys(entry.device for entry in entries if entry.device))
    ours = f"in colour: our runs, {devices}" if devices else "in colour: our runs"

    yield Line2D([], [], color=GREY, linewidth=1.8, label="valid, during training")
    yield Line2D([], [], color=GREY, **VALID, label="valid, final")
    yield Line2D([], [], color=GREY, **TEST, label="test")
    yield Line2D([], [], color="none", label=drawable_text(shorten(ours, 60)))
    yield Line2D([], [], color="none", label="grey: published results")


def _middle(minutes: tuple[float, float]) -> float:
    return math.sqrt(minutes[0] * minutes[1])
