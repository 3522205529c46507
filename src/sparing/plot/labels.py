"""Labels beside points of a picture, placed so that they hide neither curves nor each other."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sparing.plot.figure import drawable_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FONT = 8
HEIGHT = 0.064
"""Height of a label in the margin, as a share of the frame's height."""
MARGIN = 1.015
"""Where the margin begins, as a share of the frame's width."""
PAD = 10.0
"""Pixels between a label and what it must not hide; more than a point's radius."""
GAPS = (20.0, 45.0, 80.0, 130.0, 200.0, 300.0, 420.0)
"""Horizontal distances to try between a label and its point, in pixels."""
RISE, RISES = 12.0, 24
"""Step of the vertical distances to try, in pixels, and how many steps up and down."""
STRIDE = 4.0
"""Pixels between the points that sample a line."""
BLOCKED = 1000.0
"""Penalty for covering a label or leaving the frame; covering a point of a line costs 1."""

Points = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Label:
    """A text in the picture, and the point it names."""

    text: str
    end: tuple[float, float]
    """The point it names, in data coordinates."""
    colour: str
    outside: bool = False
    """Whether it is in the margin on the right."""


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle of pixels."""

    x0: float
    y0: float
    x1: float
    y1: float

    def count(self, points: Points, pad: float = 0.0) -> int:
        """How many points lie in it, or within `pad` of it."""
        x, y = points[:, 0], points[:, 1]
        across = (x > self.x0 - pad) & (x < self.x1 + pad)
        return int((across & (y > self.y0 - pad) & (y < self.y1 + pad)).sum())

    def meets(self, other: "Box") -> bool:
        """Whether the two overlap, or nearly."""
        apart = self.x0 > other.x1 + PAD or other.x0 > self.x1 + PAD
        return not (apart or self.y0 > other.y1 + PAD / 2 or other.y0 > self.y1 + PAD / 2)


def write_labels(axes: "Axes", labels: Sequence[Label]) -> None:
    """Write the labels in the margin, then each of the others in an empty place near its point."""
    outside = [label for label in labels if label.outside]
    heights = separate([_share(axes, label)[1] for label in outside], HEIGHT)
    leaders = []
    for label, height in zip(outside, heights, strict=True):
        _annotate(axes, label, (MARGIN, height))
        leaders.append(((MARGIN, height), label.end))
    axes.figure.draw_without_rendering()  # type: ignore[union-attr]  # fixes where the frame is
    marks = [_drawn_points(axes)]
    marks += [_leader(axes.transAxes.transform(a), axes.transData.transform(b)) for a, b in leaders]
    boxes: list[Box] = []
    inside = [label for label in labels if not label.outside]
    for label in sorted(inside, key=lambda each: -each.end[1]):
        box, leader = _place(axes, label, np.concatenate(marks), boxes)
        boxes.append(box)
        marks.append(leader)


def separate(wanted: Sequence[float], gap: float) -> list[float]:
    """Positions from 0 to 1, at least `gap` apart, in the order of `wanted` and close to it."""
    order = sorted(range(len(wanted)), key=lambda at: wanted[at])
    blocks: list[list[float]] = []
    for rank, at in enumerate(order):
        blocks.append([wanted[at] - rank * gap])
        # Neighbours that would overlap are merged into one block.
        while len(blocks) > 1 and _mean(blocks[-2]) > _mean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    free = [_mean(block) for block in blocks for _ in block]
    highest = max(gap / 2, 1 - gap / 2 - (len(order) - 1) * gap)
    places = [0.0] * len(order)
    for rank, at in enumerate(order):
        places[at] = min(max(free[rank], gap / 2), highest) + rank * gap
    return places


def _place(axes: "Axes", label: Label, marks: Points, boxes: Sequence[Box]) -> tuple[Box, Points]:
    """Write a label in the emptiest place near its point; return its box and its leader line."""
    end, frame = axes.transData.transform(label.end), axes.get_window_extent()
    best, least = Box(0, 0, 0, 0), math.inf
    for box in _candidates(end, *_size(axes, label)):
        leader = _leader(_root(box, end), end)
        hidden = box.count(marks, PAD) + sum(other.count(leader) for other in boxes)
        blocked = sum(box.meets(other) for other in boxes)
        blocked += box.x0 < frame.x0 or box.x1 > frame.x1 or box.y0 < frame.y0 or box.y1 > frame.y1
        if hidden + BLOCKED * blocked < least:
            best, least = box, hidden + BLOCKED * blocked
        if not least:
            break
    root = _root(best, end)
    across, up = axes.transAxes.inverted().transform((best.x0, root[1]))
    _annotate(axes, label, (float(across), float(up)), on_left=root[0] > best.x0)
    return best, _leader(root, end)


def _size(axes: "Axes", label: Label) -> tuple[float, float]:
    """Width and height of a label, in pixels."""
    text = axes.text(0, 0, drawable_text(label.text), fontsize=FONT)
    extent = text.get_window_extent()
    text.remove()
    return float(extent.width), float(extent.height)


def _candidates(end: Points, width: float, height: float) -> Iterator[Box]:
    """Places beside a point, the nearest first, right before left."""
    offsets = [(gap, RISE * step) for gap in GAPS for step in range(-RISES, RISES + 1)]
    for gap, rise in sorted(offsets, key=lambda each: each[0] + 1.5 * abs(each[1])):
        y0 = float(end[1]) + rise - height / 2
        for x0 in (float(end[0]) + gap, float(end[0]) - gap - width):
            yield Box(x0, y0, x0 + width, y0 + height)


def _root(box: Box, end: Points) -> tuple[float, float]:
    """Where the leader line starts: the middle of the side that faces the point."""
    return (box.x1 if box.x1 < end[0] else box.x0), (box.y0 + box.y1) / 2


def _annotate(
    axes: "Axes", label: Label, place: tuple[float, float], *, on_left: bool = False
) -> None:
    """Write a label at a place in shares of the frame, with a leader line to its point."""
    leader = {"arrowstyle": "-", "color": label.colour, "linewidth": 0.6, "alpha": 0.6}
    axes.annotate(
        drawable_text(label.text),
        label.end,
        place,
        textcoords="axes fraction",
        color=label.colour,
        fontsize=FONT,
        ha="left",
        ma="right" if on_left else "left",
        va="center",
        zorder=4.5,
        arrowprops={**leader, "relpos": (1 if on_left else 0, 0.5), "shrinkB": 4},
        annotation_clip=False,
    )


def _drawn_points(axes: "Axes") -> Points:
    """Pixels along every line and at every point of the picture."""
    found = [np.empty((0, 2))]
    for line in axes.lines:
        data: Any = line.get_xydata()
        at = line.get_transform().transform(data)
        at = at[np.isfinite(at).all(axis=1)]
        found += [at, *(_leader(a, b) for a, b in pairwise(at))]
    return np.concatenate(found)


def _leader(start: Any, end: Any) -> Points:
    """Points along the straight line between two pixels."""
    start, end = np.asarray(start), np.asarray(end)
    steps = 2 + int(np.hypot(*(end - start)) / STRIDE)
    return np.asarray(np.linspace(start, end, steps))


def _share(axes: "Axes", label: Label) -> tuple[float, float]:
    """Where a label's point lies, in shares of the frame."""
    across, up = axes.transAxes.inverted().transform(axes.transData.transform(label.end))
    return float(across), float(up)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
