"""Ending on request: the first Ctrl-C or SIGTERM lets the step finish, the second does not."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass(slots=True)
class Stop:
    """Whether, and by which signal, the process was told to end."""

    signal: int = 0
    agreed: int | None = None
    """What several processes last agreed on, since they end after the same step; None: alone."""

    @property
    def cause(self) -> int:
        """The signal that ends the run; 0 while it goes on."""
        return self.signal if self.agreed is None else self.agreed

    @property
    def asked(self) -> bool:
        """True after the first signal, once every process knows of it."""
        return self.cause != 0


@contextmanager
def stopping(*, launched: bool = False) -> Iterator[Stop]:
    """Catch SIGINT and SIGTERM once inside the block; restore the old behaviour after it.

    Where a launcher passes on a signal that the terminal has sent to all, the second is no new one;
    the launcher kills what does not end in time.
    """
    stop = Stop()
    old = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, frame: FrameType | None) -> None:
        stop.signal = stop.signal or number
        if launched:
            return
        for each, handler in old.items():
            signal.signal(each, handler)

    try:
        for number in old:
            signal.signal(number, ask)
    except ValueError:
        # Only the main thread may set handlers; elsewhere (notebooks, tests) nothing is caught.
        yield stop
        return
    try:
        yield stop
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
