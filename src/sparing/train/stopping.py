"""When a run stops: its clock, and the signals that end it early."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from sparing.launch import seconds_since_start


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
def stopping(*, launched: bool = False) -> Iterator[Stop]:
    """Catch the first SIGINT or SIGTERM inside the block, so that the current step can finish.

    A second signal has its usual effect. Not so under a launcher: it passes on signals that the
    terminal has already sent to every process, and kills processes that do not end in time.
    """
    stop = Stop()
    old = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def request(number: int, frame: FrameType | None) -> None:
        stop.signal = stop.signal or number
        if launched:
            return
        for each, handler in old.items():
            signal.signal(each, handler)

    try:
        for number in old:
            signal.signal(number, request)
    except ValueError:
        # Only the main thread may set handlers; elsewhere (notebooks, tests) nothing is caught.
        yield stop
        return
    try:
        yield stop
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
