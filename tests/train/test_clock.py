"""Whose time a run goes by."""

import pytest

from sparing.train import clock
from sparing.train.clock import Clock, process_age_s


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
    monkeypatch.setattr(clock, "age_s", lambda pid: None)
    assert process_age_s() == 0.0
