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


def test_a_log_tells_the_time_left_by_the_pace_since_the_first_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bar, times = Bar(), iter([100.0, 120.0])
    for share in (0.5, 0.6):
        now = next(times)
        monkeypatch.setattr(progress.time, "perf_counter", lambda now=now: now)
        bar.update(share, "words")
    first, second = capsys.readouterr().err.splitlines()
    assert (first, second) == (" 50%  words  ETA -", " 60%  words  ETA 1:20")


def test_the_pace_of_a_resumed_run_counts_from_where_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    bar = Bar()
    bar.update(0.9, "resumed")
    # As if a tenth of a second had brought a thousandth: a hundred are left, so ten seconds.
    bar._bar.start_t -= 0.1
    bar.update(0.901, "going on")
    bar._bar.refresh()
    bar.close()
    assert " 90% |" in screen.getvalue()
    assert "<00:09]" in screen.getvalue() or "<00:10]" in screen.getvalue()
