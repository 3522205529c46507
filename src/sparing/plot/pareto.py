"""Loss against measured time: which networks nobody beats in both."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparing.errors import UserError
from sparing.plot.figure import COLOURS, GREY, dress, new_figure, plain, small_print

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKS = ("o", "s", "^", "D", "v", "P", "X")


@dataclass(frozen=True, slots=True)
class Point:
    """One network of a board."""

    name: str
    kind: str
    """Points of one kind look alike."""
    x: float
    y: float
    spread: float
    """Half the distance between its worst and best seed."""


def front(points: Sequence[Point]) -> list[Point]:
    """Those that no other one beats in time without losing in loss, by time."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda each: (each.x, each.y)):
        if not kept or point.y < kept[-1].y:
            kept.append(point)
    return kept


def draw_pareto(points: Sequence[Point], title: str, *, x: str, about: Sequence[str]) -> "Figure":
    """Points by kind, the front as a line, each point with its name."""
    if not points:
        raise UserError("there is nothing on the board to draw")
    figure = new_figure(8.5, 5.4)
    axes = figure.add_subplot()
    best = front(points)
    axes.step([p.x for p in best], [p.y for p in best], where="post", color=GREY, linewidth=1)
    kinds = list(dict.fromkeys(point.kind for point in points))
    for index, kind in enumerate(kinds):
        own = [point for point in points if point.kind == kind]
        axes.errorbar(
            [point.x for point in own],
            [point.y for point in own],
            yerr=[point.spread for point in own],
            fmt=MARKS[index % len(MARKS)],
            color=COLOURS[index % len(COLOURS)],
            label=plain(kind),
            markersize=7,
            capsize=3,
        )
    for point in points:
        axes.annotate(
            plain(point.name), (point.x, point.y), (5, 5), textcoords="offset points", fontsize=7
        )
    dress(axes, x=x, y="bits per byte")
    axes.legend(frameon=False, fontsize=9)
    axes.set_title(plain(title), loc="left", fontsize=12, fontweight="bold")
    small_print(figure, list(about))
    return figure
