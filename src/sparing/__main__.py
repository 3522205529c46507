"""`python -m sparing` is `sparing`."""

import os
import sys


def run() -> int:
    """The command line, imported inside: an early Ctrl-C finds no traceback to print."""
    try:
        from sparing.cli.main import main
        from sparing.launch import launched

        status = main()
        if launched():
            _end(status)
        return status
    except KeyboardInterrupt:
        return 130


def _end(status: int) -> None:
    """End without taking the interpreter down: threads that joined others may still want it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    raise SystemExit(run())
