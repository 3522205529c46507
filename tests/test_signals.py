"""Signals: caught, answered during a long call, and sent when the parent ends."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest

from sparing import signals
from sparing.signals import answer_signals, catch_stop_signals, end_soon, outlive_interrupts

SOURCE = Path(__file__).parents[1] / "src"


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    """Restore the signals that a shell or nohup made this process ignore."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def strike(number: int = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


@contextmanager
def long_call() -> Iterator[tuple[Callable[[], object], Callable[[], object]]]:
    """A call of C that takes until it is ended, and runs no Python meanwhile: a locked mutex."""
    c, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(128)
    c.pthread_mutex_lock(mutex)
    yield lambda: c.pthread_mutex_lock(mutex), lambda: c.pthread_mutex_unlock(mutex)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_request_to_stop_is_caught_inside_the_block_only(number: signal.Signals) -> None:
    caught: list[int] = []
    before = signal.getsignal(number)
    with catch_stop_signals(lambda number, frame: caught.append(number)):
        strike(number)
    assert (caught, signal.getsignal(number)) == ([number], before)


def test_what_nohup_ignores_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with catch_stop_signals(lambda number, frame: pytest.fail("caught")):
        strike(signal.SIGHUP)


def test_a_signal_is_answered_while_the_main_thread_is_in_a_long_call() -> None:
    answered: list[int] = []
    handled: list[int] = []

    def answer(number: int) -> None:
        answered.append(number)
        # Without an answer the call would never end.
        end()

    with (
        long_call() as (wait, end),
        answer_signals(answer),
        catch_stop_signals(lambda number, frame: handled.append(number)),
    ):
        Thread(target=strike).start()
        wait()
    assert answered == handled == [signal.SIGINT]


def test_blocks_may_be_nested_and_leave_no_trace() -> None:
    before, outer, inner = signal.set_wakeup_fd(-1), [], []  # type: ignore[var-annotated]
    with catch_stop_signals(lambda number, frame: None):
        with answer_signals(outer.append):
            with answer_signals(inner.append):
                strike(signal.SIGTERM)
            strike(signal.SIGINT)
        strike(signal.SIGINT)
    assert (inner, outer) == ([signal.SIGTERM], [signal.SIGINT])
    assert signal.set_wakeup_fd(before) == -1


def test_ctrl_c_ends_a_command_that_a_library_keeps_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, done = [], Event()

    def end_now(number: int) -> None:
        ended.append(number)
        end()
        done.set()

    monkeypatch.setattr(signals, "GRACE_S", 0.0)
    monkeypatch.setattr(signals, "end_now", end_now)
    with long_call() as (wait, end), answer_signals(end_soon):
        striker = Thread(target=strike)
        with pytest.raises(KeyboardInterrupt):
            _ = striker.start(), wait(), striker.join()
        done.wait()
    assert ended == [signal.SIGINT]


def test_a_signal_with_a_handler_of_its_own_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "Timer", lambda *_: pytest.fail("ended"))
    with catch_stop_signals(lambda number, frame: None), answer_signals(end_soon):
        strike(signal.SIGTERM)
        strike(signal.SIGINT)


def test_a_command_may_outlive_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "Timer", lambda *_: pytest.fail("ended"))
    with outlive_interrupts(), answer_signals(end_soon):
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                strike(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


# Starts itself as a child, which ends only with its parent.
FAMILY = """
import subprocess, sys, time
from sparing.signals import end_with_parent
if sys.argv[1:]:
    end_with_parent()
    print("ready", flush=True)
    time.sleep(600)
else:
    subprocess.run([sys.executable, "-c", sys.orig_argv[2], "child"])
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has prctl")
def test_a_process_ends_with_a_parent_that_is_killed() -> None:
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-c", FAMILY]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        parent.kill()
        # The end of the output: no process holds it open any more.
        assert parent.stdout.read() == b""
