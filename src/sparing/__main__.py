"""`python -m sparing` is `sparing`."""

import os
import sys
from contextlib import suppress

from sparing.launch import launched


def run() -> int:
    """The command line, imported inside: an early Ctrl-C finds no traceback to print."""
    try:
        from sparing.cli.main import main

        status = main()
    except KeyboardInterrupt:
        status = 130
    if launched():
        _end(status)
    return status


def _end(status: int) -> None:
    """End without taking the interpreter down: threads that joined others may still want it."""
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    raise SystemExit(run())
