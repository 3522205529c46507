"""The front, and the picture of a board."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparing.errors import UserError
from sparing.plot.figure import save_figure
from sparing.plot.pareto import Point, draw_pareto, front

POINTS = [
    Point("searched-1", "searched", 6.0, 1.30, 0.01),
    Point("baseline", "baseline", 10.0, 1.31, 0.02),
    Point("random-1", "random", 6.1, 1.40, 0.0),
    Point("slow", "rule", 12.0, 1.20, 0.0),
    Point("quick", "rule", 3.0, 1.90, 0.0),
]


def test_the_front_holds_whoever_nobody_beats_in_both() -> None:
    assert [point.name for point in front(POINTS)] == ["quick", "searched-1", "slow"]


def test_of_two_as_quick_the_better_one_is_on_the_front() -> None:
    twins = [Point("a", "k", 1.0, 2.0, 0.0), Point("b", "k", 1.0, 1.0, 0.0)]
    assert [point.name for point in front(twins)] == ["b"]


def test_everybody_is_named(words: Callable[[Any], str], tmp_path: Path) -> None:
    figure = draw_pareto(POINTS, "A board", x="ms", about=["some machine"])
    said = words(figure)
    for point in POINTS:
        assert point.name in said
        assert point.kind in said
    assert "some machine" in said
    assert save_figure(figure, tmp_path / "pareto.png")[0].stat().st_size > 1000


def test_an_empty_board_is_refused() -> None:
    with pytest.raises(UserError, match="nothing on the board"):
        draw_pareto([], "A board", x="ms", about=[])
