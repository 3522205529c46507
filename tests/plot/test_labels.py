"""Placement of labels."""

import numpy as np
import pytest

from sparing.plot.figure import new_figure
from sparing.plot.labels import Box, Label, separate, write_labels


def test_labels_avoid_lines_points_and_each_other() -> None:
    from matplotlib.text import Text

    figure = new_figure(6, 4)
    axes = figure.add_subplot()
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    # A wall on the right of the point, and another point on its left.
    axes.plot([0.55, 0.55], [0, 1])
    axes.plot([0.5], [0.5], "o")
    axes.plot([0.3], [0.5], "o")
    write_labels(
        axes, [Label("first words", (0.5, 0.5), "k"), Label("other words", (0.3, 0.5), "k")]
    )
    figure.draw_without_rendering()
    # Without the threads, which annotations count in.
    first, other = (Text.get_window_extent(text) for text in axes.texts)
    assert not first.overlaps(other)
    for place in (first, other):
        for x, y in ((0.5, 0.5), (0.3, 0.5)):
            assert not place.contains(*axes.transData.transform((x, y)))
        assert place.x1 < axes.transData.transform((0.55, 0))[0]


def test_without_space_a_label_is_still_drawn() -> None:
    figure = new_figure(1, 1)
    write_labels(
        figure.add_subplot(), [Label("far too many words for so little paper", (0.5, 0.5), "k")]
    )
    assert len(figure.axes[0].texts) == 1


def test_a_box_counts_the_points_inside_it() -> None:
    box, points = Box(0, 0, 2, 1), np.array([[1.0, 0.5], [2.5, 0.5], [9.0, 9.0]])
    assert (box.count(points), box.count(points, pad=1)) == (1, 2)
    assert box.meets(Box(1, 0, 3, 1))
    assert not box.meets(Box(99, 0, 101, 1))


def test_labels_are_moved_apart_no_more_than_needed() -> None:
    assert separate([0.5, 0.2], 0.1) == pytest.approx([0.5, 0.2])
    assert separate([0.5, 0.5], 0.1) == pytest.approx([0.45, 0.55])
    assert separate([0.0, 1.0], 0.1) == pytest.approx([0.05, 0.95])
    crowded = separate([0.9, 0.9, 0.9], 0.1)
    assert crowded == pytest.approx([0.75, 0.85, 0.95])
    assert separate([], 0.1) == []
