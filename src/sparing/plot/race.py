"""Bits per byte against time, of our runs and of those of others."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparing.errors import UserError
from sparing.plot.figure import GREY, clipped, dress, new_figure, pen, plain, small_print
from sparing.plot.labels import Label, write
from sparing.plot.published import PUBLISHED, Published
from sparing.plot.series import Series, origin, placing, read_diaries, series, short_names
from sparing.runs.folder import open_run
from sparing.runs.results import SplitResult, device_of, read_split_results

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CORPUS = "enwik8"
"""What the published figures are of."""
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
FOREVER = 14 * 24 * 60.0
SHORT = 60.0
"""Minutes below which a published point stands among ours, and is named beside itself."""
ROOM = 80.0
"""How far the frame goes on before a point that is named in it, as a factor of time."""
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
class Racer:
    """A run of ours: its way, and where it got."""

    name: str
    origin: str
    device: str | None
    curve: Series
    valid: tuple[float, SplitResult] | None
    """Minutes, and the figure reached in them."""
    test: tuple[float, SplitResult] | None

    @property
    def end(self) -> tuple[float, float]:
        """Minutes and bits per byte of the point that stands for the run."""
        minutes, score = self.test or self.valid or (math.nan, None)
        return minutes, score.bits_per_byte if score else math.nan

    @property
    def label(self) -> str:
        """Its name, figures and time."""
        parts = [f"{clipped(self.name, 36)}, {duration(self.end[0])}"]
        told = {"test": self.test, "valid": self.valid}
        figures = [_words(kind, at[1]) for kind, at in told.items() if at is not None]
        return "\n".join([*parts, ", ".join(figures)])


def draw_race(runs: Sequence[Path], published: Sequence[Published] = PUBLISHED) -> "Figure":
    """Our valid curves, each ending in its figure, among the points and curves of others."""
    racers = read_racers(runs)
    figure = new_figure(12, 7 + 0.12 * len(racers))
    axes = figure.add_subplot()
    labels = [_racer_named(racer, index) for index, racer in enumerate(racers)]
    labels += map(_published_named, published)
    _scale(axes, racers, labels)
    for other in published:
        _draw_published(axes, other)
    for index, racer in enumerate(racers):
        _draw_racer(axes, racer, index)
    title = f"{CORPUS}: bits per byte against training time"
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold", pad=26)
    # Between title and frame, where no curve can pass under it.
    axes.legend(handles=list(_key(racers)), **KEY)
    small_print(figure, [racer.origin for racer in racers])
    write(axes, labels)
    return figure


def read_racers(runs: Sequence[Path]) -> list[Racer]:
    """The runs as the picture needs them; refused where they did not read the published text."""
    folders = [open_run(run) for run in runs]
    recipes = []
    for folder in folders:
        config = folder.config()
        if config.data.corpus != CORPUS:
            raise UserError(
                f"run {folder.path} read {config.data.corpus}; race is about {CORPUS} only"
            )
        recipes.append(config.recipe)
    # Two runs of one recipe go by their folders.
    names = recipes if len(set(recipes)) == len(recipes) else short_names(runs)
    return [_racer(name, run) for name, run in zip(names, runs, strict=True)]


def duration(minutes: float) -> str:
    """12.34 -> '12.3 min', 750 -> '12.5 h'."""
    for unit, size in (("days", 1440.0), ("h", 60.0), ("min", 1.0)):
        if minutes >= (2 if unit == "days" else 1) * size:
            return f"{minutes / size:.3g} {unit}"
    return f"{minutes * 60:.2g} s"


def _racer(name: str, run: Path) -> Racer:
    (diary,) = read_diaries([run])
    place = placing(diary, "minutes")
    curve = series(diary, "valid", "bits_per_byte", "minutes")
    # Zero has no place on a logarithmic axis.
    ends = [
        None if score is None else (max(place(score.step), SECOND), score)
        for score in read_split_results(open_run(run))
    ]
    if ends == [None, None]:
        raise UserError(f"run {run} has no valid or test figure yet; `sparing evaluate` makes one")
    return Racer(name, origin(run), device_of(open_run(run)), curve, ends[0], ends[1])


def _words(kind: str, score: SplitResult) -> str:
    remarks = [] if score.whole else [f"first {score.bytes:,} bytes"]
    remarks += [] if score.protocol == "bytes" else [score.protocol]
    return f"{score.bits_per_byte:.4f} {kind}" + (f" ({', '.join(remarks)})" if remarks else "")


def _scale(axes: "Axes", racers: Sequence[Racer], labels: Sequence[Label]) -> None:
    """Axes that hold every end and every label; the steep first minutes stick out."""
    dress(axes, x="training time, logarithmic", y="bits per byte, logarithmic")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_ticks(list(TICKS), list(TICKS.values()))
    axes.yaxis.set_ticks(list(LEVELS), [f"{level:g}" for level in LEVELS])
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(_nowhere())
    starts = [max(x, SECOND) / 1.5 for racer in racers for x in racer.curve.x]
    starts += [label.end[0] / ROOM for label in labels if not label.outside]
    axes.set_xlim(min([0.5, *starts]), max(FOREVER, *(2 * racer.end[0] for racer in racers)))
    bits = [label.end[1] for label in labels]
    axes.set_ylim(0.98 * min(bits), max(1.4, 1.05 * max(bits)))


def _nowhere() -> Any:
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


def _draw_racer(axes: "Axes", racer: Racer, index: int) -> None:
    axes.plot(racer.curve.x, racer.curve.y, **pen(index), linewidth=1.8, zorder=4)
    colour = {"color": pen(index)["color"]}
    if racer.valid is not None:
        axes.plot(racer.valid[0], racer.valid[1].bits_per_byte, **colour, **VALID)
    if racer.test is not None:
        axes.plot(racer.test[0], racer.test[1].bits_per_byte, **colour, **TEST)


def _racer_named(racer: Racer, index: int) -> Label:
    return Label(racer.label, racer.end, str(pen(index)["color"]))


def _published_named(other: Published) -> Label:
    """In the margin, but for those among our runs."""
    minutes = FOREVER if other.minutes is None else _middle(other.minutes)
    first = f"{other.name}, {other.bits_per_byte:g}, {other.parameters}"
    told = ", ".join(filter(None, [other.time, other.hardware, other.reading]))
    place = (minutes, other.bits_per_byte)
    return Label(f"{first}\n{told}", place, DARK, outside=minutes >= SHORT)


def _key(racers: Sequence[Racer]) -> Iterator["Artist"]:
    from matplotlib.lines import Line2D

    devices = ", ".join(dict.fromkeys(racer.device for racer in racers if racer.device))
    ours = f"in colour: our runs, {devices}" if devices else "in colour: our runs"

    yield Line2D([], [], color=GREY, linewidth=1.8, label="valid, on the way")
    yield Line2D([], [], color=GREY, **VALID, label="valid, at the end")
    yield Line2D([], [], color=GREY, **TEST, label="test")
    yield Line2D([], [], color="none", label=plain(clipped(ours, 60)))
    yield Line2D([], [], color="none", label="grey: others'")


def _middle(minutes: tuple[float, float]) -> float:
    return math.sqrt(minutes[0] * minutes[1])
