"""The progress bar: share, pace and time left."""

import errno
from io import StringIO
from pathlib import Path

import pytest
from tests.training.toy import Shelf, budget, callbacks, toy_training

from sparing.training import progress
from sparing.training.loop import fit
from sparing.training.progress import ProgressBar
from sparing.training.schedule import ScheduleConfig


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_the_share_is_that_after_the_step(tmp_path: Path) -> None:
    # The share before the step would leave the first step, with compilation, out of the pace.
    shown: list[float] = []
    hooks = callbacks(tmp_path, Shelf())
    hooks.bar.update = lambda share, text: shown.append(share)  # type: ignore[method-assign]
    fit(toy_training(), budget(steps=4), ScheduleConfig(), hooks)
    assert shown == [0.25, 0.5, 0.75, 1.0]


def test_the_share_of_a_run_that_ends_early_is_that_of_its_part(tmp_path: Path) -> None:
    # As in `sparing verify --until 0.5`.
    shown: list[float] = []
    hooks = callbacks(tmp_path, Shelf())
    hooks.bar.update = lambda share, text: shown.append(share)  # type: ignore[method-assign]
    training = toy_training()
    training.until = 0.5
    fit(training, budget(steps=4), ScheduleConfig(), hooks)
    assert shown == [0.5, 1.0]


def at(moment: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress.time, "perf_counter", lambda: moment)


def test_the_time_left_follows_the_pace_since_the_first_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # A resumed run, whose first half took an unknown time; the pace changes later.
    bar = ProgressBar()
    for moment, share in ((100.0, 0.5), (120.0, 0.6), (121.0, 0.7)):
        at(moment, monkeypatch)
        bar.update(share, "text")
    at(131.0, monkeypatch)
    bar.update(0.75, "text")
    lines = capsys.readouterr().err.splitlines()
    assert lines == [" 50%  text  ETA -", " 60%  text  ETA 1:20", " 75%  text  ETA 0:31"]


def test_a_budget_that_is_passed_counts_as_done(capsys: pytest.CaptureFixture[str]) -> None:
    # The last step of a run in minutes or epochs may end after the budget does.
    ProgressBar().update(1.031, "text")
    assert capsys.readouterr().err == "100%  text  ETA -\n"


class Closed(StringIO):
    """A terminal that was closed, or a pipe whose reader has ended."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self.terminal, self.open = terminal, True

    def isatty(self) -> bool:
        return self.terminal

    def write(self, text: str) -> int:
        if not self.open:
            raise OSError(errno.EIO, "Input/output error")
        return super().write(text)


@pytest.mark.parametrize("terminal", [True, False])
def test_a_closed_terminal_does_not_stop_the_work(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Closed(terminal=terminal)
    monkeypatch.setattr("sys.stderr", screen)
    bar = ProgressBar()
    screen.open = False
    for share in (0.5, 1.0):
        bar.update(share, "text")
        bar.print("text")
    bar.close()


def test_a_bar_on_a_terminal_shows_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    bar = ProgressBar()
    assert "  0% |" in screen.getvalue()
    for moment, share in ((100.0, 0.5), (120.0, 0.6)):
        at(moment, monkeypatch)
        bar.update(share, "text")
    bar.close()
    assert screen.getvalue().rstrip().endswith("text  ETA 1:20")
    assert " 60% |" in screen.getvalue()


@pytest.mark.parametrize("width", [80, 100, 200])
def test_the_time_left_is_shown_whatever_the_width(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr("sys.stderr", screen := Terminal())
    bar = ProgressBar()
    longest = "step 1000000  loss 12.345  17.811 bits/byte  999.9 MiB/s"
    for share in (0.1, 0.2):
        bar.update(share, longest)
    bar.close()
    last = screen.getvalue().strip().split("\r")[-1]
    assert longest in last
    assert "ETA 0:0" in last
    assert len(last) < width
    # No longer than it needs to be.
    assert last.index("step") <= 32
