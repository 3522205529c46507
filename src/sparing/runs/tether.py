"""Becomes the command it is given, once the kernel has promised to end it with its parent.

`python -m sparing.runs.tether PARENT WORD...`: what is done between fork and exec elsewhere, which
Python does not do safely beside threads.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

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
