"""The clock of a run, and the signals that stop it."""

import os
import signal
from collections.abc import Iterator

import pytest

from sparing.training import stopping as stopping_module
from sparing.training.stopping import Clock, Stop, process_age_s, stopping

AGAIN = "; Ctrl-C again ends at once, without one"


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Restore SIGINT, which a shell ignores for processes in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def strike(number: int = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The signals that would have ended this process at once."""
    found: list[int] = []
    monkeypatch.setattr(stopping_module, "end_now", found.append)
    return found


@pytest.mark.usefixtures("interruptible")
def test_the_first_ctrl_c_is_answered_and_the_second_ends_the_process(ended: list[int]) -> None:
    told: list[str] = []
    with stopping(told.append, exit_on_second_interrupt=True) as stop:
        strike()
        assert (stop.requested, stop.cause) == (True, signal.SIGINT)
    assert (told, ended) == ([f"stopping with a checkpoint after this step{AGAIN}"], [])
    with stopping(told.append, exit_on_second_interrupt=True):
        strike(signal.SIGTERM)
        strike()
    assert (len(told), ended) == (2, [signal.SIGINT])


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_in_a_process_of_someone_else_the_second_ctrl_c_is_an_exception(
    first: int, ended: list[int]
) -> None:
    told: list[str] = []
    with stopping(told.append) as stop:
        strike(first)
        assert stop.cause == first
        with pytest.raises(KeyboardInterrupt):
            strike()
    assert (told, ended) == ([f"stopping with a checkpoint after this step{AGAIN}"], [])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("interruptible")
def test_a_closing_terminal_asks_twice_for_a_checkpoint(ended: list[int]) -> None:
    told: list[str] = []
    # These tests themselves may run under nohup.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    with stopping(told.append) as stop:
        strike(signal.SIGHUP)
        strike(signal.SIGHUP)
        assert stop.cause == signal.SIGHUP
    signal.signal(signal.SIGHUP, before)
    assert (len(told), ended) == (1, [])


@pytest.mark.parametrize("ends", [True, False])
def test_a_second_signal_is_ignored_under_a_launcher(ends: bool, ended: list[int]) -> None:
    before, told = signal.getsignal(signal.SIGTERM), []  # type: ignore[var-annotated]
    with stopping(told.append, launched=True, exit_on_second_interrupt=ends) as stop:
        strike(signal.SIGTERM)
        strike()
        assert stop.cause == signal.SIGTERM
    assert (told, ended) == (["stopping with a checkpoint after this step"], [])
    assert signal.getsignal(signal.SIGTERM) == before


def test_several_processes_stop_only_when_they_agree() -> None:
    stop = Stop(agreed=0)
    stop.signal = signal.SIGTERM
    assert not stop.requested
    stop.agreed = signal.SIGINT
    assert (stop.requested, stop.cause) == (True, signal.SIGINT)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The current time, set by the test."""
    time = [100.0]
    monkeypatch.setattr(stopping_module.time, "perf_counter", lambda: time[0])
    return time


def test_the_time_of_earlier_processes_counts(now: list[float]) -> None:
    clock = Clock(50.0)
    now[0] += 7
    assert clock.elapsed_s() == clock.shared_s() == 57.0


def test_several_processes_share_the_agreed_time(now: list[float]) -> None:
    clock = Clock(0.0)
    clock.agreed_s = 3.0
    now[0] += 7
    assert (clock.shared_s(), clock.elapsed_s()) == (3.0, 7.0)


def test_the_age_of_a_process_is_0_where_it_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert process_age_s() > 0
    monkeypatch.setattr(stopping_module, "seconds_since_start", lambda pid: None)
    assert process_age_s() == 0.0
