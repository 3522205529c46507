"""Whose time a run goes by."""

from io import StringIO
from pathlib import Path

import pytest
from tests.train.toy import Shelf, budget, callbacks, training

from sparing.train import progress
from sparing.train import progress as clock
from sparing.train.loop import fit
from sparing.train.progress import Bar, Clock, process_age_s
from sparing.train.schedule import ScheduleConfig


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be set by hand."""
    time = [100.0]
    monkeypatch.setattr(clock.time, "perf_counter", lambda: time[0])
    return time


def test_time_goes_on_from_what_earlier_processes_spent(now: list[float]) -> None:
    run = Clock(50.0)
    now[0] += 7
    assert run.elapsed_s() == run.shared_s() == 57.0


def test_among_several_the_time_is_the_one_agreed_on(now: list[float]) -> None:
    run = Clock(0.0)
    run.agreed_s = 3.0
    now[0] += 7
    assert (run.shared_s(), run.elapsed_s()) == (3.0, 7.0)


def test_where_the_system_does_not_tell_a_process_has_no_age(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert process_age_s() > 0
    monkeypatch.setattr(clock, "seconds_since_start", lambda pid: None)
    assert process_age_s() == 0.0


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_the_share_shown_is_that_after_the_step(tmp_path: Path) -> None:
    # One from before it would hide the first step's time, compilation included, from the pace.
    shown: list[float] = []
    place = callbacks(tmp_path, Shelf())
    place.bar.update = lambda share, words: shown.append(share)  # type: ignore[method-assign]
    fit(training(), budget(steps=4), ScheduleConfig(), place)
    assert shown == [0.25, 0.5, 0.75, 1.0]


def at(moment: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress.time, "perf_counter", lambda: moment)


def test_a_log_tells_the_time_left_by_the_pace_since_the_first_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # As of a resumed run, whose first half took who knows how long; the pace changes on the way.
    bar = Bar()
    for moment, share in ((100.0, 0.5), (120.0, 0.6), (121.0, 0.7)):
        at(moment, monkeypatch)
        bar.update(share, "words")
    at(131.0, monkeypatch)
    bar.update(0.75, "words")
    lines = capsys.readouterr().err.splitlines()
    assert lines == [" 50%  words  ETA -", " 60%  words  ETA 1:20", " 75%  words  ETA 0:31"]


def test_a_bar_tells_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    bar = Bar()
    assert "  0% |" in screen.getvalue()
    for moment, share in ((100.0, 0.5), (120.0, 0.6)):
        at(moment, monkeypatch)
        bar.update(share, "words")
    bar.close()
    assert screen.getvalue().rstrip().endswith("words  ETA 1:20")
    assert " 60% |" in screen.getvalue()
