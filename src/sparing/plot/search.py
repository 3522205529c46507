"""Pictures of an architecture search: preferences over blocks, cooling, and the Pareto front."""

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparing.errors import UserError
from sparing.files import atomic_write
from sparing.models.stack.config import BLOCKS
from sparing.plot.figure import (
    COLOURS,
    GREY,
    add_footer,
    drawable_text,
    label_axes,
    line_style,
    new_figure,
)
from sparing.plot.series import RunJournal, series

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = re.compile(r"pi\.(\d+)\.(.)")
FRAMES = 48
"""Most frames of an animation; a search records many more."""
FRAME_MS = 120
LAST_MS = 2500
MARKS = ("o", "s", "^", "D", "v", "P", "X")


@dataclass(frozen=True, slots=True)
class Frame:
    """The preferences at one step: a row per candidate, a column per slot."""

    step: int
    rows: Mapping[str, Sequence[float]]


def read_frames(journal: RunJournal) -> list[Frame]:
    """Every matrix of preferences in a journal, in order."""
    return [
        Frame(entry["step"], rows)
        for entry in journal.entries
        if entry["kind"] == "train" and (rows := _rows(entry, journal.name))
    ]


def calm_since(every: Sequence[Frame], stable: float = 0.75) -> int | None:
    """The step since which at least that share of favourites stayed the same at every entry."""
    since = None
    for before, after in pairwise(every):
        pairs = list(zip(_favourites(before), _favourites(after), strict=True))
        same = sum(one == other for one, other in pairs) / len(pairs)
        if same < stable:
            since = None
        elif since is None:
            since = before.step
    return since


def draw_pi(frame: Frame, title: str, origin: str) -> "Figure":
    """Probabilities in grey, from white to black, with the largest of each column as a number."""
    slots = len(next(iter(frame.rows.values())))
    figure = new_figure(max(5.0, 3.2 + 0.48 * slots), 1.7 + 0.48 * len(frame.rows))
    axes = figure.add_subplot()
    grid = [list(row) for row in frame.rows.values()]
    axes.imshow(grid, cmap="Greys", vmin=0, vmax=1, aspect="auto")
    for slot in range(slots):
        best = max(range(len(grid)), key=lambda row: grid[row][slot])
        share = grid[best][slot]
        colour = "white" if share > 0.5 else "black"
        axes.text(slot, best, f"{share:.2f}", ha="center", va="center", fontsize=8, color=colour)
    axes.set_xticks(range(slots), [str(slot + 1) for slot in range(slots)], fontsize=9)
    names = [BLOCKS[letter].title if letter in BLOCKS else letter for letter in frame.rows]
    axes.set_yticks(range(len(grid)), names, fontsize=9)
    axes.set_xlabel("block", fontsize=10)
    heading = drawable_text(f"Preferences of {title}, step {frame.step:,}")
    axes.set_title(heading, loc="left", fontsize=12, fontweight="bold")
    add_footer(figure, [origin])
    return figure


def draw_cooling(journal: RunJournal) -> "Figure":
    """Temperature, entropy and expected cost over the steps of a search."""
    names = {"tau": "temperature", "entropy": "entropy (nats)", "cost": "expected cost (share)"}
    known = {name for entry in journal.entries for name in entry}
    present = [name for name in names if name in known]
    if not present:
        raise UserError(f"the journal of run {journal.name} has no temperature; is it a search?")
    figure = new_figure(8.0, 4.4)
    axes = figure.add_subplot()
    for index, name in enumerate(present):
        curve = series(journal, "train", name, "steps")
        axes.plot(curve.x, curve.y, label=names[name], linewidth=1.4, **line_style(index))
    label_axes(axes, x="steps", y="temperature, entropy, cost")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=9)
    heading = drawable_text(f"Cooling of {journal.name}")
    axes.set_title(heading, loc="left", fontsize=12, fontweight="bold")
    add_footer(figure, [journal.origin])
    return figure


def save_animation(journal: RunJournal, path: Path) -> Path:
    """Write a GIF of the whole search, which pauses on the last frame."""
    chosen = thin_out(read_frames(journal), FRAMES)
    pictures = [_picture(draw_pi(frame, journal.name, journal.origin)) for frame in chosen]
    stay_ms = [FRAME_MS] * (len(pictures) - 1) + [LAST_MS]
    with atomic_write(path) as scratch:
        pictures[0].save(
            scratch,
            format="GIF",
            save_all=True,
            append_images=pictures[1:],
            duration=stay_ms,
            loop=0,
        )
    return path


def thin_out(every: Sequence[Frame], most: int) -> list[Frame]:
    """At most `most` evenly spaced frames, including the first and the last."""
    if not every:
        raise UserError("the journal has no preferences; is the run a search?")
    if len(every) <= most:
        return list(every)
    return [every[round(at * (len(every) - 1) / (most - 1))] for at in range(most)]


def _favourites(frame: Frame) -> list[str]:
    slots = range(len(next(iter(frame.rows.values()))))
    return [max(frame.rows, key=lambda letter: frame.rows[letter][slot]) for slot in slots]


def _picture(figure: "Figure") -> Any:
    from PIL import Image

    with io.BytesIO() as buffer:
        figure.savefig(buffer, format="png", dpi=80)
        buffer.seek(0)
        # Greys need no palette per frame, and 16 of them make the file a quarter of the size.
        return Image.open(buffer).convert("L").point(lambda grey: round(grey / 17) * 17)


def _rows(entry: Mapping[str, Any], run: str) -> dict[str, list[float]]:
    rows: dict[str, dict[int, float]] = {}
    for name, value in entry.items():
        if found := NAME.fullmatch(name):
            rows.setdefault(found[2], {})[int(found[1])] = value
    whole = len({tuple(sorted(row)) for row in rows.values()}) <= 1
    if not whole or not all(_is_probability(pi) for row in rows.values() for pi in row.values()):
        step = entry["step"]
        raise UserError(
            f"the journal of {run} is damaged: preferences of step {step} are not probabilities"
        )
    return {letter: [row[slot] for slot in sorted(row)] for letter, row in rows.items()}


def _is_probability(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value <= 1


@dataclass(frozen=True, slots=True)
class Point:
    """One network of a board."""

    name: str
    kind: str
    """Points of one kind share a marker."""
    x: float
    y: float
    half_range: float
    """Half the distance between its worst and its best seed."""


def pareto_front(points: Sequence[Point]) -> list[Point]:
    """The points that no other beats in both time and loss, sorted by time."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda each: (each.x, each.y)):
        if not kept or point.y < kept[-1].y:
            kept.append(point)
    return kept


def draw_pareto(points: Sequence[Point], title: str, *, x: str, about: Sequence[str]) -> "Figure":
    """Points by kind, each with its name, and the front as a line."""
    if not points:
        raise UserError("the board has no finished network to draw")
    figure = new_figure(8.5, 5.4)
    axes = figure.add_subplot()
    best = pareto_front(points)
    axes.step([p.x for p in best], [p.y for p in best], where="post", color=GREY, linewidth=1)
    kinds = list(dict.fromkeys(point.kind for point in points))
    for index, kind in enumerate(kinds):
        own = [point for point in points if point.kind == kind]
        axes.errorbar(
            [point.x for point in own],
            [point.y for point in own],
            yerr=[point.half_range for point in own],
            fmt=MARKS[index % len(MARKS)],
            color=COLOURS[index % len(COLOURS)],
            label=drawable_text(kind),
            markersize=7,
            capsize=3,
        )
    for point in points:
        axes.annotate(
            drawable_text(point.name),
            (point.x, point.y),
            (5, 5),
            textcoords="offset points",
            fontsize=7,
        )
    label_axes(axes, x=x, y="bits per byte")
    axes.legend(frameon=False, fontsize=9)
    axes.set_title(drawable_text(title), loc="left", fontsize=12, fontweight="bold")
    add_footer(figure, list(about))
    return figure
