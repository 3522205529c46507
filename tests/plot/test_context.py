"""Pictures of loss against context, and of the spans of heads."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.plot.conftest import train

from sparing.errors import UserError
from sparing.evaluation.context import ContextPoint
from sparing.plot.context import (
    ContextCurve,
    context_series,
    draw_context,
    draw_span_history,
    draw_spans,
    head_windows,
    last_spans,
)
from sparing.plot.figure import save_figure
from sparing.plot.series import Series, read_journals

TELEMETRY = {"span.mean": 50.0, "span.0.0": 32.0, "span.0.1": 40.0, "span.1.0": 96.0}
TELEMETRY |= {"span.1.1": 1000.0, "span.10.0": 7.0, "lr": 1.0}


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
    shown = words(figure)
    for word in ("plain", r"_odd\$", "commit aaa", "commit bbb", "bits per byte", "tokens"):
        assert word in shown
    assert save_figure(figure, tmp_path / "a.png")[0].stat().st_size > 0


def test_no_run_gives_no_picture() -> None:
    with pytest.raises(UserError, match="at least one run"):
        draw_context([])


def test_heads_are_read_from_the_telemetry_of_a_model() -> None:
    windows = head_windows(TELEMETRY)
    assert list(windows) == [(0, 0), (0, 1), (1, 0), (1, 1), (10, 0)]
    assert windows[1, 1] == 1000
    with pytest.raises(UserError, match="no learned spans"):
        head_windows({"span.mean": 3.0})


def test_every_head_has_a_bar(words: Callable[[Any], str], tmp_path: Path) -> None:
    windows = {(layer, head): 32.0 * (1 + head) for layer in range(3) for head in range(4)}
    figure = draw_spans(windows, "a run", "its origin")
    (axes,) = figure.axes
    heights = [bar.get_height() for bar in axes.patches]
    assert heights == [128, 96, 64, 32] * 3
    places = [bar.get_x() + bar.get_width() / 2 for bar in axes.patches]
    assert places == sorted(places)
    assert "mean 80" in words(figure)
    assert "its origin" in words(figure)
    assert save_figure(figure, tmp_path / "spans.png")[0].stat().st_size > 1000


def test_layers_without_heads_take_no_space() -> None:
    (axes,) = draw_spans({(1, 0): 32.0, (4, 0): 64.0}, "a run", "its origin").axes
    assert [round(bar.get_x() + bar.get_width() / 2, 9) for bar in axes.patches] == [0, 1]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["2", "5"]


def test_spans_over_training_are_a_line_per_head(
    make_run: Callable[..., Path], words: Callable[[Any], str], tmp_path: Path
) -> None:
    entries = [
        train(step, 2.0, **{"span.0.0": 32.0, "span.0.1": 32.0 + step, "span.1.0": 2.0 * step})
        for step in (10, 20, 30)
    ]
    (journal,) = read_journals([make_run(entries=entries)])
    figure = draw_span_history(journal)
    (axes,) = figure.axes
    drawn = [list(line.get_ydata()) for line in axes.lines]
    assert drawn == [[32, 32, 32], [42, 52, 62], [20, 40, 60]]
    assert list(axes.lines[0].get_xdata()) == [10, 20, 30]
    assert "layer 2" in words(figure)
    assert save_figure(figure, tmp_path / "course.png")[0].stat().st_size > 1000


def test_a_journal_without_spans_is_refused(make_run: Callable[..., Path]) -> None:
    (journal,) = read_journals([make_run()])
    with pytest.raises(UserError, match="no spans in its journal yet"):
        draw_span_history(journal)


def test_the_windows_a_journal_ends_with_are_those_of_its_last_sound_entry(
    make_run: Callable[..., Path],
) -> None:
    said = [{"span.0.0": 32.0}, {"span.0.0": 40.0, "lr": 1.0}, {"span.0.0": float("inf")}, {}]
    entries = [train(10 * at, 2.0, **spans) for at, spans in enumerate(said, 1)]
    (journal,) = read_journals([make_run(entries=entries)])
    assert last_spans(journal) == {"span.0.0": 40.0}
    (silent,) = read_journals([make_run("silent")])
    assert last_spans(silent) == {}
