"""The picture of training."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparing.errors import UserError
from sparing.plot.curves import Line, bounds, draw_curves, group_events, panel_series, parse_line
from sparing.plot.figure import save_figure
from sparing.plot.series import Event, Series, read_journals

MakeRun = Callable[..., Path]


def drawn(axes: Any) -> list[tuple[list[float], list[float]]]:
    """The data of every curve on the axes, without horizontal and vertical lines."""
    lines = [line for line in axes.lines if line.get_transform() == axes.transData]
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in lines]


def test_the_picture_shows_the_journal(
    make_run: MakeRun, tmp_path: Path, colours: Callable[[Path], int]
) -> None:
    figure = draw_curves([make_run()])
    steps = [10, 20, 30, 40, 50, 60]
    main, rate, norm, speed = figure.axes
    assert drawn(main) == [(steps, [8 / step for step in steps]), ([30, 65], [0.5, 0.3])]
    assert drawn(rate) == [(steps, [0.002] * 6)]
    assert drawn(norm) == [(steps, [1 / step for step in steps])]
    assert drawn(speed)[0][1] == pytest.approx([2 * (50 + step) for step in steps])
    (path,) = save_figure(figure, tmp_path / "a.png")
    assert colours(path) > 5


def test_the_picture_names_run_commit_axes_and_levels(
    make_run: MakeRun, words: Callable[[Any], str]
) -> None:
    figure = draw_curves([make_run("first")], "bytes", [Line(0.25, "the paper")])
    shown = words(figure)
    expected = ("first", "c0ffee123456", "bits per byte", "training text read (bytes)", "train")
    for word in (*expected, "valid", "learning rate", "gradient norm", "speed (bytes/s)"):
        assert word in shown
    assert "0.25 the paper" in shown
    low, high = figure.axes[0].get_ylim()
    assert low < 0.25 < 0.8 < high


def test_runs_of_different_corpora_are_told_apart(
    make_run: MakeRun, words: Callable[[Any], str]
) -> None:
    runs = [make_run("a", corpus="enwik8"), make_run("b", corpus="/my/notes.txt")]
    for told, chosen in ((False, runs[:1]), (False, [runs[0], make_run("c")]), (True, runs)):
        shown = words(draw_curves(chosen))
        assert ("different corpora" in shown) == told
        assert ("a (enwik8)" in shown) == ("b (/my/notes.txt)" in shown) == told


def test_seeds_of_one_variant_share_a_colour(make_run: MakeRun) -> None:
    figure = draw_curves([make_run(name) for name in "abc"], groups=["x", "y", "x"])
    for axes in figure.axes[1:]:
        first, other, again = (line for line in axes.lines if len(line.get_xdata()) > 2)
        assert first.get_color() == again.get_color() != other.get_color()
        assert first.get_linestyle() != again.get_linestyle()


def test_events_are_marked_in_every_panel_and_listed_once_per_kind(
    make_run: MakeRun, words: Callable[[Any], str]
) -> None:
    figure = draw_curves([make_run()])
    for axes in figure.axes:
        upright = [list(line.get_xdata()) for line in axes.lines if line.get_linestyle() == ":"]
        assert upright == [[25, 25], [26, 26], [26, 26]]
    shown = words(figure).replace("\n", " ")
    assert "2 times: loss is not finite; step skipped" in shown
    assert "step 26: went back to the weights of step 20" in shown


def test_several_runs_share_one_picture(make_run: MakeRun, words: Callable[[Any], str]) -> None:
    runs = [make_run("a/same"), make_run("b/same"), make_run("_c$d")]
    figure = draw_curves(runs, "minutes")
    assert len(drawn(figure.axes[0])) == 6
    assert len({line.get_color() for line in figure.axes[1].lines[:3]}) == 3
    shown = words(figure)
    for word in ("3 runs", "a/same", "b/same", r"_c\$d", "training time (minutes)"):
        assert word in shown
    assert shown.count("c0ffee123456") == 3


def test_a_diverged_or_short_journal_still_gives_a_picture(
    make_run: MakeRun, tmp_path: Path, words: Callable[[Any], str]
) -> None:
    lost = [{"kind": "train", "step": s, "bits_per_byte": None, "lr": 0.0} for s in (1, 2)]
    one = [{"kind": "valid", "step": 3, "bits_per_byte": 2.0, "nats_per_token": 1.4}]
    figure = draw_curves([make_run("lost", lost), make_run("one", one)])
    save_figure(figure, tmp_path / "a.png")
    assert words(figure).count("not in the journal") == 2


def test_the_steep_start_of_a_long_curve_does_not_flatten_the_rest() -> None:
    steep = Series([], [8.0, 5.0, *[2.0] * 17, 1.0])
    assert bounds([(steep, Series([], [1.5]))], []) == pytest.approx((0.95, 2.05))
    short = Series([], [8.0, math.nan, *[2.0] * 9, 1.0])
    assert bounds([(short, Series([], []))], []) == pytest.approx((0.65, 8.35))
    assert bounds([(short, Series([], [9.0]))], [Line(0.0, "")]) == pytest.approx((-0.45, 9.45))
    assert bounds([(Series([], [math.nan]), Series([], []))], []) == (0, 8)


def test_events_of_one_kind_are_grouped_whatever_their_numbers() -> None:
    first, second = (Event(s, s, f"went back to the weights of step {s - 9}") for s in (10, 20))
    other = Event(30, 30, "odd")
    groups = group_events([first, other, second])
    assert groups == {
        "2 times: went back to the weights of step …": [first, second],
        "step 30: odd": [other],
    }


def test_speed_is_given_in_bytes(make_run: MakeRun) -> None:
    (journal,) = read_journals([make_run()])
    assert panel_series(journal, "tokens_per_s", "steps").y[0] == pytest.approx(2 * 60)
    assert panel_series(journal, "lr", "steps").y[0] == 0.002


def test_levels_are_read_with_and_without_a_label() -> None:
    assert parse_line('1.076:"SHA-RNN paper"') == Line(1.076, "SHA-RNN paper")
    assert parse_line("1.076: a:b") == Line(1.076, "a:b")
    assert parse_line("2") == Line(2.0, "")
    for wrong in ("paper", "nan:paper", ":paper", "1,076:paper"):
        with pytest.raises(UserError, match=r"write it as 1\.076:label"):
            parse_line(wrong)
