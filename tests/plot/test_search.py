"""Pictures of a search: preferences, cooling, and the Pareto front of a board."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.plot.conftest import train

from sparing.errors import UserError
from sparing.plot.figure import save_figure
from sparing.plot.search import (
    Frame,
    Point,
    calm_since,
    draw_cooling,
    draw_pareto,
    draw_pi,
    pareto_front,
    read_frames,
    save_animation,
    thin_out,
)
from sparing.plot.series import RunJournal, read_journals

FRAME = Frame(700, {"x": [0.7, 0.1, 0.2], "f": [0.2, 0.3, 0.75], "i": [0.1, 0.6, 0.05]})

POINTS = [
    Point("searched-1", "searched", 6.0, 1.30, 0.01),
    Point("baseline", "baseline", 10.0, 1.31, 0.02),
    Point("random-1", "random", 6.1, 1.40, 0.0),
    Point("slow", "rule", 12.0, 1.20, 0.0),
    Point("quick", "rule", 3.0, 1.90, 0.0),
]


def entry_with_pi(step: int, **more: float) -> dict[str, Any]:
    pi = {f"pi.{slot}.{x}": row[slot] for x, row in FRAME.rows.items() for slot in range(3)}
    return train(step, 2.0, tau=1 / step, entropy=0.9, **{**pi, **more})


def test_matrices_are_read_from_the_journal_in_order() -> None:
    entries = [entry_with_pi(10), {"kind": "valid", "step": 10}, train(20, 1.9), entry_with_pi(30)]
    found = read_frames(RunJournal("run", "", entries))
    assert [frame.step for frame in found] == [10, 30]
    assert found[0].rows == FRAME.rows


def test_slots_are_ordered_by_number_not_by_name() -> None:
    row = {f"pi.{slot}.x": slot / 12 for slot in range(12)}
    (found,) = read_frames(RunJournal("run", "", [train(1, 2.0, **row)]))
    assert found.rows == {"x": [slot / 12 for slot in range(12)]}


def test_the_largest_entry_of_each_block_is_written_out(
    words: Callable[[Any], str], tmp_path: Path
) -> None:
    figure = draw_pi(FRAME, "a search", "its origin")
    (axes,) = figure.axes
    written = {tuple(text.get_position()): text.get_text() for text in axes.texts}
    assert written == {(0, 0): "0.70", (1, 2): "0.60", (2, 1): "0.75"}
    said = words(figure)
    assert "Transformer-XL attention" in said
    assert "step 700" in said
    assert "its origin" in said
    assert save_figure(figure, tmp_path / "pi.png")[0].stat().st_size > 1000


def test_cooling_shows_what_the_journal_records(
    words: Callable[[Any], str], make_run: Callable[..., Path]
) -> None:
    (journal,) = read_journals([make_run(entries=[entry_with_pi(10), entry_with_pi(20, cost=0.7)])])
    figure = draw_cooling(journal)
    (axes,) = figure.axes
    assert [len(line.get_xdata()) for line in axes.lines] == [2, 2, 1]
    assert "temperature" in words(figure)


def test_a_run_that_is_not_a_search_is_refused(
    make_run: Callable[..., Path], tmp_path: Path
) -> None:
    (journal,) = read_journals([make_run()])
    with pytest.raises(UserError, match="is it a search"):
        draw_cooling(journal)
    with pytest.raises(UserError, match="is the run a search"):
        save_animation(journal, tmp_path / "film.gif")


def test_the_animation_has_a_frame_per_matrix(
    make_run: Callable[..., Path], tmp_path: Path
) -> None:
    image = pytest.importorskip("PIL.Image")
    entries = [
        entry_with_pi(10, **{"pi.0.x": 0.9}),
        entry_with_pi(20),
        entry_with_pi(30, **{"pi.1.f": 0.9}),
    ]
    (journal,) = read_journals([make_run(entries=entries)])
    with image.open(save_animation(journal, tmp_path / "film.gif")) as film:
        assert film.n_frames == 3


def test_long_searches_keep_evenly_spaced_frames_and_both_ends() -> None:
    every = [Frame(step, {}) for step in range(1000)]
    found = thin_out(every, 10)
    assert [frame.step for frame in found] == [111 * n for n in range(10)]
    assert thin_out(every[:4], 10) == every[:4]


def test_calm_starts_after_the_last_large_change() -> None:
    def frame(step: int, favourites: str) -> Frame:
        return Frame(step, {x: [float(x == best) for best in favourites] for x in "xf"})

    course = [frame(1, "xxxx"), frame(2, "ffxx"), frame(3, "ffxf"), frame(4, "ffff")]
    assert calm_since(course) == 2
    assert calm_since([*course, frame(5, "xxff")]) is None
    assert calm_since(course[:1]) is None


def test_the_front_has_the_points_that_no_other_beats_in_both() -> None:
    assert [point.name for point in pareto_front(POINTS)] == ["quick", "searched-1", "slow"]


def test_of_two_equally_fast_the_better_one_is_on_the_front() -> None:
    twins = [Point("a", "k", 1.0, 2.0, 0.0), Point("b", "k", 1.0, 1.0, 0.0)]
    assert [point.name for point in pareto_front(twins)] == ["b"]


def test_every_network_is_named(words: Callable[[Any], str], tmp_path: Path) -> None:
    figure = draw_pareto(POINTS, "A board", x="ms", about=["some machine"])
    said = words(figure)
    for point in POINTS:
        assert point.name in said
        assert point.kind in said
    assert "some machine" in said
    assert save_figure(figure, tmp_path / "pareto.png")[0].stat().st_size > 1000


def test_an_empty_board_is_refused() -> None:
    with pytest.raises(UserError, match="no finished network"):
        draw_pareto([], "A board", x="ms", about=[])
