"""What a person watching a run is told."""

from io import StringIO
from pathlib import Path

import pytest
from tests.train.toy import Shelf, budget, desk, training

from sparing.train import progress
from sparing.train.loop import fit
from sparing.train.progress import Bar
from sparing.train.schedule import ScheduleConfig


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_the_share_shown_is_that_after_the_step(tmp_path: Path) -> None:
    # One from before it would hide the first step's time, compilation included, from the pace.
    shown: list[float] = []
    place = desk(tmp_path, Shelf())
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
