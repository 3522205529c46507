"""The picture of what context is worth."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparing.errors import UserError
from sparing.evaluate.context import ContextPoint
from sparing.plot.context import ContextCurve, context_series, draw_context
from sparing.plot.figure import save_figure
from sparing.plot.series import Series


def points(*triples: tuple[int, int, float]) -> list[ContextPoint]:
    return [
        ContextPoint(low=low, high=high, nats_per_token=9.0, bits_per_byte=bits, count=1)
        for low, high, bits in triples
    ]


def test_each_range_is_drawn_at_its_logarithmic_middle() -> None:
    found = context_series(points((1, 1, 4.0), (2, 8, 3.0)))
    assert found == Series([1, 4], [4.0, 3.0])


def test_one_line_per_run_with_its_name_and_commit(
    tmp_path: Path, words: Callable[[Any], str]
) -> None:
    curves = [
        ContextCurve("plain", "runs/plain · commit aaa", points((1, 1, 4.0), (2, 8, 3.0))),
        ContextCurve("_odd$", "runs/_odd$ · commit bbb", points((1, 1, 5.0))),
    ]
    figure = draw_context(curves)
    (axes,) = figure.axes
    assert [list(line.get_ydata()) for line in axes.lines] == [[4.0, 3.0], [5.0]]
    told = words(figure)
    for word in ("plain", r"_odd\$", "commit aaa", "commit bbb", "bits per byte", "tokens"):
        assert word in told
    assert save_figure(figure, tmp_path / "a.png")[0].stat().st_size > 0


def test_no_run_gives_no_picture() -> None:
    with pytest.raises(UserError, match="at least one run"):
        draw_context([])
