"""When a run stops: its clock, and the signals that end it early."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import numpy as np

from sparing.launch import seconds_since_start
from sparing.signals import STOP_SIGNALS, answer_signals, catch_stop_signals, end_now


def process_age_s() -> float:
    """Seconds since this process was started; 0 if the system does not provide it."""
    return seconds_since_start(os.getpid()) or 0.0


class Clock:
    """Elapsed time of a run: `before_s` from earlier processes, plus the time since now."""

    def __init__(self, before_s: float) -> None:
        self._zero = time.perf_counter() - before_s
        self.agreed_s: float | None = None
        """Rank 0's time at the last synchronization; None in a single process."""

    def elapsed_s(self) -> float:
        """Seconds spent on the run so far."""
        return time.perf_counter() - self._zero

    def shared_s(self) -> float:
        """Like `elapsed_s`, but the same number in every process."""
        return self.elapsed_s() if self.agreed_s is None else self.agreed_s


@dataclass(frozen=True, slots=True)
class Pace:
    """The speed of another run, in place of the clock: at every step the share of the budget that
    it had used there, so that a schedule by the minute does not depend on this machine."""

    steps: tuple[int, ...]
    elapsed_s: tuple[float, ...]
    """Seconds that the other run had used when it began the step after each of `steps`."""

    def seconds_at(self, step: int) -> float:
        """Seconds used at a step, interpolated."""
        return float(np.interp(step, self.steps, self.elapsed_s))


@dataclass(slots=True)
class Stop:
    """Whether the process should stop, and because of which signal."""

    signal: int = 0
    agreed: int | None = None
    """The signal all processes agreed on, so that they stop after the same step; None in a single
    process."""

    @property
    def cause(self) -> int:
        """The signal that ends the run; 0 if there is none."""
        return self.signal if self.agreed is None else self.agreed

    @property
    def requested(self) -> bool:
        """Whether a signal has arrived and all processes know about it."""
        return self.cause != 0


@contextmanager
def stopping(
    tell: Callable[[str], None], *, launched: bool = False, exit_on_second_interrupt: bool = False
) -> Iterator[Stop]:
    """Catch the signals that ask to stop, so that the current step can finish; `tell` says so.

    A second Ctrl-C raises KeyboardInterrupt or, with `exit_on_second_interrupt`, ends the process
    at once. Not so under a launcher: it passes on signals that the terminal has already sent to
    every process, and kills processes that do not end in time.
    """
    stop = Stop()
    received: list[int] = []
    again = "" if launched else "; Ctrl-C again ends at once, without one"

    def request(number: int, frame: FrameType | None) -> None:
        if stop.signal and number == signal.SIGINT and not (launched or exit_on_second_interrupt):
            signal.default_int_handler(number, frame)
        stop.signal = stop.signal or number

    def answer(number: int) -> None:
        # Only Ctrl-C: a closing terminal sends SIGHUP more than once.
        if received and number == signal.SIGINT and exit_on_second_interrupt and not launched:
            end_now(number)
        elif number in STOP_SIGNALS:
            if not received:
                tell(f"stopping with a checkpoint after this step{again}")
            received.append(number)

    with catch_stop_signals(request), answer_signals(answer):
        yield stop
