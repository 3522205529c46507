"""A command at a terminal of 80 columns."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

SRC = Path(__file__).parents[2] / "src"
PATIENCE_S = 120.0
AGAIN_S = 2.0
"""After how long a key is pressed again."""
AT_TERMINAL = """
import fcntl, runpy, signal, termios
# Ctrl-C reaches the processes of the session that a terminal controls, unless they ignore it, as
# jobs in the background of a script do.
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("sparing", run_name="__main__", alter_sys=True)
"""


class Terminal:
    """Runs a command line in a process whose input and output are a terminal."""

    def __init__(self, *words: object, **environment: str) -> None:
        self.text = ""
        self._unread = 0
        command = [sys.executable, "-c", AT_TERMINAL, *map(str, words)]
        known = {**os.environ, "PYTHONPATH": str(SRC), "TERM": "xterm", "OMP_NUM_THREADS": "1"}
        known.pop("NO_COLOR", None)
        known.pop("COLUMNS", None)
        self._file, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
        self._process = subprocess.Popen(
            command,
            stdin=inner,
            stdout=inner,
            stderr=inner,
            env={**known, **environment},
            start_new_session=True,
        )
        os.close(inner)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._file)

    def write(self, keys: str) -> None:
        """Press keys."""
        os.write(self._file, keys.encode())

    def read_until(self, wanted: str) -> None:
        """Read on until `wanted` is there."""
        while (at := self.text.find(wanted, self._unread)) < 0:
            self.read_some()
        self._unread = at + len(wanted)

    def read_some(self) -> None:
        """Read what comes next."""
        ready, _, _ = select.select([self._file], [], [], PATIENCE_S)
        assert ready, f"nothing more came after {self.text!r}"
        self.text += os.read(self._file, 4096).decode(errors="replace")

    def leave(self, key: str) -> int:
        """Press a key until the program ends, and return its exit status.

        Once is not enough on a busy machine: what is typed after a prompt has been printed, but
        before its line is edited, means something else to the terminal.
        """
        with suppress(OSError):
            # Reading and writing end in an error when the other side is closed.
            while True:
                self.write(key)
                while select.select([self._file], [], [], AGAIN_S)[0]:
                    self.read_some()
        return self._process.wait(PATIENCE_S)

    def wait(self) -> int:
        """Read to the end; return the exit status."""
        with suppress(OSError):
            # Ends in an error when the other side is closed.
            while True:
                self.read_some()
        return self._process.wait(PATIENCE_S)
