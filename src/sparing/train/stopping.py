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

    @property
    def asked(self) -> bool:
        """True after the first signal."""
        return self.signal != 0


@contextmanager
def stopping() -> Iterator[Stop]:
    """Catch SIGINT and SIGTERM once inside the block; restore the old behaviour after it."""
    stop = Stop()
    old = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, frame: FrameType | None) -> None:
        stop.signal = number
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
