"""`python -m sparing` is `sparing`."""

import os
import signal
import sys
from collections.abc import Callable, MutableMapping
from contextlib import suppress


def run() -> int:
    """The command line."""
    wait_briefly(os.environ)
    main, launched = _imported()
    try:
        status = main()
    except KeyboardInterrupt:
        status = 130
    if launched():
        _end(status)
    return status


def wait_briefly(environ: MutableMapping[str, str]) -> None:
    """Let torch's threads, as they wait for each other, soon leave a core to whoever needs it.

    By default they turn round and round for milliseconds: on two cores beside two busy processes
    that made a small training seven times as long. On an idle machine this costs at most 5 %.
    """
    if "OMP_WAIT_POLICY" not in environ:
        environ.setdefault("GOMP_SPINCOUNT", "1000")


def _imported() -> tuple[Callable[[], int], Callable[[], bool]]:
    """What we need of our own, imported where an early Ctrl-C does no harm.

    Nothing is under way yet, so it ends the process there and then; an exception would be printed
    with a traceback by some of the libraries imported and swallowed by others.
    """
    watched = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    # In the background of a shell it is ignored, and stays so.
    if watched:
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))
    from sparing.cli.main import main
    from sparing.launch import launched

    if watched:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return main, launched


def _end(status: int) -> None:
    """End without taking the interpreter down: threads that joined others may still want it."""
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    raise SystemExit(run())
