"""Pictures of a search: which matrix, which largest entry, how many frames."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.plot.conftest import train

from sparing.errors import UserError
from sparing.plot.figure import save_figure
from sparing.plot.pi import Frame, calm_since, draw_cooling, draw_pi, frames, save_film, thinned
from sparing.plot.series import Diary, read_diaries

FRAME = Frame(700, {"x": [0.7, 0.1, 0.2], "f": [0.2, 0.3, 0.75], "i": [0.1, 0.6, 0.05]})


def told(step: int, **more: float) -> dict[str, Any]:
    pi = {f"pi.{slot}.{x}": row[slot] for x, row in FRAME.rows.items() for slot in range(3)}
    return train(step, 2.0, tau=1 / step, entropy=0.9, **{**pi, **more})


def test_matrices_are_read_from_the_journal_in_order() -> None:
    entries = [told(10), {"kind": "valid", "step": 10}, train(20, 1.9), told(30)]
    found = frames(Diary("run", "", entries))
    assert [frame.step for frame in found] == [10, 30]
    assert found[0].rows == FRAME.rows


def test_slots_are_ordered_by_number_not_by_name() -> None:
    row = {f"pi.{slot}.x": slot / 12 for slot in range(12)}
    (found,) = frames(Diary("run", "", [train(1, 2.0, **row)]))
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


def test_cooling_shows_what_the_journal_tells(
    words: Callable[[Any], str], make_run: Callable[..., Path]
) -> None:
    (diary,) = read_diaries([make_run(entries=[told(10), told(20, cost=0.7)])])
    figure = draw_cooling(diary)
    (axes,) = figure.axes
    assert [len(line.get_xdata()) for line in axes.lines] == [2, 2, 1]
    assert "temperature" in words(figure)


def test_a_run_that_is_no_search_is_refused(make_run: Callable[..., Path], tmp_path: Path) -> None:
    (diary,) = read_diaries([make_run()])
    with pytest.raises(UserError, match="is it a search"):
        draw_cooling(diary)
    with pytest.raises(UserError, match="is the run a search"):
        save_film(diary, tmp_path / "film.gif")


def test_the_film_has_a_frame_per_matrix(make_run: Callable[..., Path], tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    entries = [told(10, **{"pi.0.x": 0.9}), told(20), told(30, **{"pi.1.f": 0.9})]
    (diary,) = read_diaries([make_run(entries=entries)])
    with image.open(save_film(diary, tmp_path / "film.gif")) as film:
        assert film.n_frames == 3


def test_long_searches_are_thinned_evenly_ends_included() -> None:
    every = [Frame(step, {}) for step in range(1000)]
    found = thinned(every, 10)
    assert [frame.step for frame in found] == [111 * n for n in range(10)]
    assert thinned(every[:4], 10) == every[:4]


def test_calm_begins_after_the_last_great_change() -> None:
    def frame(step: int, favourites: str) -> Frame:
        return Frame(step, {x: [float(x == best) for best in favourites] for x in "xf"})

    course = [frame(1, "xxxx"), frame(2, "ffxx"), frame(3, "ffxf"), frame(4, "ffff")]
    assert calm_since(course) == 2
    assert calm_since([*course, frame(5, "xxff")]) is None
    assert calm_since(course[:1]) is None
