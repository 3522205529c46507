"""How a search makes up its mind: the matrix of preferences, its film, temperature and entropy."""

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparing.errors import UserError
from sparing.files import writing
from sparing.models.stack.config import BLOCKS
from sparing.plot.figure import dress, new_figure, pen, plain, small_print
from sparing.plot.series import Diary, series

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = re.compile(r"pi\.(\d+)\.(.)")
FRAMES = 48
"""The most frames of a film; a search notes many more."""
FRAME_MS = 120
LAST_MS = 2500


@dataclass(frozen=True, slots=True)
class Frame:
    """The preferences at one step: a row per candidate, a column per slot."""

    step: int
    rows: Mapping[str, Sequence[float]]


def frames(diary: Diary) -> list[Frame]:
    """Every matrix that a journal tells, in order."""
    return [
        Frame(entry["step"], rows)
        for entry in diary.entries
        if entry["kind"] == "train" and (rows := _rows(entry, diary.name))
    ]


def calm_since(every: Sequence[Frame], stable: float = 0.75) -> int | None:
    """The step since which, between any two matrices, that share of favourites stayed the same."""
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
    """Grey by probability, white to black; the largest entry of each column is written out."""
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
    heading = plain(f"Preferences of {title}, step {frame.step:,}")
    axes.set_title(heading, loc="left", fontsize=12, fontweight="bold")
    small_print(figure, [origin])
    return figure


def draw_cooling(diary: Diary) -> "Figure":
    """Temperature, entropy and expected cost over the steps of a search."""
    names = {"tau": "temperature", "entropy": "entropy (nats)", "cost": "expected cost (share)"}
    told = {name for entry in diary.entries for name in entry}
    present = [name for name in names if name in told]
    if not present:
        raise UserError(f"the journal of run {diary.name} tells no temperature; is it a search?")
    figure = new_figure(8.0, 4.4)
    axes = figure.add_subplot()
    for index, name in enumerate(present):
        curve = series(diary, "train", name, "steps")
        axes.plot(curve.x, curve.y, label=names[name], linewidth=1.4, **pen(index))
    dress(axes, x="steps", y="temperature, entropy, cost")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=9)
    heading = plain(f"Cooling of {diary.name}")
    axes.set_title(heading, loc="left", fontsize=12, fontweight="bold")
    small_print(figure, [diary.origin])
    return figure


def save_film(diary: Diary, path: Path) -> Path:
    """A GIF of the whole search; its last frame stands still for a while."""
    chosen = thinned(frames(diary), FRAMES)
    pictures = [_picture(draw_pi(frame, diary.name, diary.origin)) for frame in chosen]
    stay_ms = [FRAME_MS] * (len(pictures) - 1) + [LAST_MS]
    with writing(path) as scratch:
        pictures[0].save(
            scratch,
            format="GIF",
            save_all=True,
            append_images=pictures[1:],
            duration=stay_ms,
            loop=0,
        )
    return path


def thinned(every: Sequence[Frame], most: int) -> list[Frame]:
    """At most `most` of them, evenly spread, the first and the last among them."""
    if not every:
        raise UserError("the journal tells no preferences; is the run a search?")
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
        # All is grey; a palette of colours would be guessed anew for every frame. Of 16 greys,
        # because all of them make the film four times as large.
        return Image.open(buffer).convert("L").point(lambda grey: round(grey / 17) * 17)


def _rows(entry: Mapping[str, Any], run: str) -> dict[str, list[float]]:
    rows: dict[str, dict[int, float]] = {}
    for name, value in entry.items():
        if found := NAME.fullmatch(name):
            rows.setdefault(found[2], {})[int(found[1])] = value
    whole = len({tuple(sorted(row)) for row in rows.values()}) <= 1
    if not whole or not all(_is_share(pi) for row in rows.values() for pi in row.values()):
        step = entry["step"]
        raise UserError(
            f"the journal of {run} is damaged: preferences of step {step} are no shares"
        )
    return {letter: [row[slot] for slot in sorted(row)] for letter, row in rows.items()}


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value <= 1
