"""The clock of a run, and the signals that stop it."""

import os
import signal
from collections.abc import Iterator

import pytest

from sparing.train import stopping as stopping_module
from sparing.train.stopping import Clock, Stop, process_age_s, stopping


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Restore SIGINT, which a shell ignores for processes in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_a_second_signal_ends_a_single_process() -> None:
    with stopping() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert (stop.requested, stop.cause) == (True, signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_second_signal_is_ignored_under_a_launcher() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stopping(launched=True) as stop:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.cause == signal.SIGINT
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
