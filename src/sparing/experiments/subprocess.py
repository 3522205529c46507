"""Child processes: they receive our signals, end when we do, and are waited for."""

import codecs
import fcntl
import os
import pty
import re
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Thread
from types import FrameType

from sparing.signals import catch_stop_signals, end_with_parent

LAUNCHER = (sys.executable, "-m", "sparing.experiments.subprocess")
"""Runs a command so that it ends with its parent, even if the parent is killed."""
TAIL = 4000
"""Characters kept of a child's output."""
GRACE_S = 1.0
"""How long to read on after a child's end; a process it left behind may hold the pipe open."""


@dataclass(slots=True)
class SignalRelay:
    """Runs child processes, forwards signals to the current one, and remembers the first."""

    signal: int = 0
    child: "subprocess.Popen[bytes] | None" = None
    forwarded: bool = False
    """Whether the current child has been sent a signal."""

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        self.signal = self.signal or number
        if self.child is not None:
            self._forward(self.child, number)

    def run(self, command: Sequence[str], *, shown: bool) -> tuple[int, str]:
        """Run a command to its end; return its exit status and its last line of output."""
        reading_end, writing_end = _open_pipe(shown)
        self.forwarded = False
        reader = OutputReader(reading_end, shown=shown)
        try:
            # In a session of its own, a child does not get the terminal's Ctrl-C as well as ours.
            self.child = subprocess.Popen(
                [*LAUNCHER, str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=writing_end,
                stderr=writing_end,
                start_new_session=True,
            )
        finally:
            os.close(writing_end)
            reader.start()
        if self.signal and not self.forwarded:
            self._forward(self.child, self.signal)
        status = self.child.wait()
        self.child = None
        reader.join(GRACE_S)
        return status, _last_line(status, reader.tail)

    def _forward(self, child: "subprocess.Popen[bytes]", number: int) -> None:
        self.forwarded = True
        child.send_signal(number)


@contextmanager
def relay_signals() -> Iterator[SignalRelay]:
    """Catch the signals that ask to stop inside the block."""
    relay = SignalRelay()
    with catch_stop_signals(relay.receive):
        yield relay


class OutputReader(Thread):
    """Reads a child's output, keeps the end of it, and shows all of it on request."""

    def __init__(self, reading_end: int, *, shown: bool) -> None:
        super().__init__(daemon=True)
        self.tail = ""
        self._reading_end, self._shown = reading_end, shown

    def run(self) -> None:
        """Read until no process holds the other end open."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while data := self._read():
            text = decoder.decode(data)
            self.tail = (self.tail + text)[-TAIL:]
            if self._shown:
                self._show(text)
        os.close(self._reading_end)

    def _show(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except OSError:
            # Our output was closed. Keep reading, or the child would block on a full pipe.
            self._shown = False

    def _read(self) -> bytes:
        try:
            return os.read(self._reading_end, 1 << 16)
        except OSError:
            # A pseudo-terminal reports in this way that its other end was closed.
            return b""


def exec_tied_to_parent(parent: int, command: Sequence[str]) -> None:
    """Replace this process by `command`, which gets SIGTERM as soon as process `parent` ends."""
    end_with_parent(parent)
    os.execvp(command[0], list(command))


def _open_pipe(shown: bool) -> tuple[int, int]:
    """Ends to read from and to write to; a pseudo-terminal if we have one, for progress bars."""
    if not (shown and sys.stderr.isatty()):
        return os.pipe()
    reading_end, writing_end = pty.openpty()
    size = fcntl.ioctl(sys.stderr.fileno(), termios.TIOCGWINSZ, bytes(8))
    fcntl.ioctl(writing_end, termios.TIOCSWINSZ, size)
    return reading_end, writing_end


def _last_line(status: int, tail: str) -> str:
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    lines = [line.strip() for line in re.split(r"[\r\n]+", tail) if line.strip()]
    return lines[-1].removeprefix("sparing: ") if lines else f"exit status {status}"


if __name__ == "__main__":
    exec_tied_to_parent(int(sys.argv[1]), sys.argv[2:])
