"""Entry point of `sparing` and of `python -m sparing`."""

import os
import signal
import sys
from collections.abc import Callable, MutableMapping
from contextlib import suppress


def run() -> int:
    """Run the command line and return its exit status."""
    limit_openmp_spinning(os.environ)
    main, is_launched = _import_main()
    try:
        status = main()
    except KeyboardInterrupt:
        status = 130
    if is_launched():
        _exit_now(status)
    return status


def limit_openmp_spinning(environ: MutableMapping[str, str]) -> None:
    """Make torch's CPU threads give up their core soon while they wait for each other.

    By default they spin for milliseconds: on two cores beside two busy processes, a small training
    took seven times as long. On an idle machine this costs at most 5 %.
    """
    if "OMP_WAIT_POLICY" not in environ:
        environ.setdefault("GOMP_SPINCOUNT", "1000")


def _import_main() -> tuple[Callable[[], int], Callable[[], bool]]:
    """Import our own modules in such a way that Ctrl-C ends the process quietly.

    No work has started yet, so exiting at once is safe. As an exception, Ctrl-C would be printed
    with a traceback by some of the imported libraries and swallowed by others.
    """
    watched = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    # A shell makes its background processes ignore SIGINT; leave that as it is.
    if watched:
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))
    from sparing.cli.main import main
    from sparing.launch import is_launched

    if watched:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return main, is_launched


def _exit_now(status: int) -> None:
    """Exit without shutting the interpreter down: threads of torch.distributed may still use it."""
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    raise SystemExit(run())
