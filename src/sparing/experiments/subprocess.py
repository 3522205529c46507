"""Child processes that get our signals, end with us, and are waited for."""

import codecs
import ctypes
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

PR_SET_PDEATHSIG = 1
"""Linux's name for it."""


def tie(parent: int) -> None:
    """Have this process told to stop (SIGTERM) when `parent` ends in whatever way."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    # A parent that was gone before the promise will not end again.
    if os.getppid() != parent:
        sys.exit(f"process {parent}, which asked for this one, is gone")


def main(parent: str, words: Sequence[str]) -> None:
    """Tie this process, and go on as the command."""
    tie(int(parent))
    os.execvp(words[0], list(words))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])


HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
TETHER = (sys.executable, "-m", "sparing.experiments.subprocess")
"""Ends a child with its parent, even if that is killed."""
TAIL = 4000
"""Characters that are kept of what a child says."""
STRAGGLER_S = 1.0
"""How long to listen after a child's end; a process it has left behind may hold the line."""


@dataclass(slots=True)
class Relay:
    """Passes signals on to the child there is, and remembers the first."""

    signal: int = 0
    child: "subprocess.Popen[bytes] | None" = None
    told: bool = False
    """Whether the child there is has been sent one."""

    def hear(self, number: int, frame: FrameType | None) -> None:
        """Take a signal."""
        self.signal = self.signal or number
        if self.child is not None:
            self._tell(self.child, number)

    def run(self, words: Sequence[str], *, shown: bool) -> tuple[int, str]:
        """Run a command to its end: its exit status, and what it says of a failure in one line."""
        ears, mouth = _line(shown)
        self.told = False
        voice = Voice(ears, shown=shown)
        try:
            # In a session of its own a child does not hear the terminal's Ctrl-C besides ours.
            self.child = subprocess.Popen(
                [*TETHER, str(os.getpid()), *words],
                stdin=subprocess.DEVNULL,
                stdout=mouth,
                stderr=mouth,
                start_new_session=True,
            )
        finally:
            os.close(mouth)
            voice.start()
        if self.signal and not self.told:
            self._tell(self.child, self.signal)
        status = self.child.wait()
        self.child = None
        voice.join(STRAGGLER_S)
        return status, _reason(status, voice.tail)

    def _tell(self, child: "subprocess.Popen[bytes]", number: int) -> None:
        self.told = True
        # Of a closed terminal a training knows nothing; SIGTERM makes it write a checkpoint.
        child.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)


@contextmanager
def relaying() -> Iterator[Relay]:
    """Catch SIGINT, SIGTERM and SIGHUP inside the block; restore the old behaviour after it."""
    relay = Relay()
    old = {number: signal.getsignal(number) for number in HEARD}
    if old[signal.SIGHUP] == signal.SIG_IGN:
        # So it is under nohup.
        del old[signal.SIGHUP]
    try:
        for number in old:
            signal.signal(number, relay.hear)
        yield relay
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


class Voice(Thread):
    """Keeps the end of what a child says, and shows it all on request."""

    def __init__(self, ears: int, *, shown: bool) -> None:
        super().__init__(daemon=True)
        self.tail = ""
        self._ears, self._shown = ears, shown

    def run(self) -> None:
        """Listen until nobody holds the other end."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while data := self._read():
            text = decoder.decode(data)
            self.tail = (self.tail + text)[-TAIL:]
            if self._shown:
                self._show(text)
        os.close(self._ears)

    def _show(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except OSError:
            # Nobody watches any more; a child that nobody listened to would stand still.
            self._shown = False

    def _read(self) -> bytes:
        try:
            return os.read(self._ears, 1 << 16)
        except OSError:
            # The way in which a terminal says that its other side was closed.
            return b""


def _line(shown: bool) -> tuple[int, int]:
    """Ends to listen at and to speak into: a terminal if this is one, so that a bar is a bar."""
    if not (shown and sys.stderr.isatty()):
        return os.pipe()
    ears, mouth = pty.openpty()
    size = fcntl.ioctl(sys.stderr.fileno(), termios.TIOCGWINSZ, bytes(8))
    fcntl.ioctl(mouth, termios.TIOCSWINSZ, size)
    return ears, mouth


def _reason(status: int, tail: str) -> str:
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    lines = [line.strip() for line in re.split(r"[\r\n]+", tail) if line.strip()]
    return lines[-1].removeprefix("sparing: ") if lines else f"exit status {status}"
