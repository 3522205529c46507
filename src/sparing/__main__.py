"""Entry point of `sparing` and of `python -m sparing`."""

import os
import signal
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress


def run() -> int:
    """Run the command line and return its exit status."""
    limit_openmp_spinning(os.environ)
    with _quiet_interrupts():
        from sparing.launch import is_launched
        from sparing.signals import answer_signals, end_soon

        _follow_torchrun()
        from sparing.cli.main import main
    try:
        with answer_signals(end_soon):
            status = main()
    except KeyboardInterrupt:
        status = 130
    if is_launched() or status > 128:
        _exit_now(status)
    return status


def _follow_torchrun() -> None:
    """End when torchrun does, and at once if it tries a refused command again."""
    from sparing.launch import earlier_refusal, is_torchrun, note_refusal
    from sparing.signals import end_with_parent

    if not is_torchrun():
        return
    end_with_parent()
    if refusal := earlier_refusal():
        note_refusal(refusal)
        _exit_now(2)


def limit_openmp_spinning(environ: MutableMapping[str, str]) -> None:
    """Make torch's CPU threads give up their core soon while they wait for each other.

    By default they spin for milliseconds: on two cores beside two busy processes, a small training
    took seven times as long. On an idle machine this costs at most 5 %.
    """
    if "OMP_WAIT_POLICY" not in environ:
        environ.setdefault("GOMP_SPINCOUNT", "1000")


@contextmanager
def _quiet_interrupts() -> Iterator[None]:
    """Import our own modules in such a way that Ctrl-C ends the process quietly and at once.

    No work has started yet, so that is safe. As an exception, Ctrl-C would be printed with a
    traceback by some of the imported libraries, swallowed by others and late in all of them.
    """
    watched = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    # A shell makes its background processes ignore SIGINT; leave that as it is.
    if watched:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    yield
    if watched:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _exit_now(status: int) -> None:
    """Exit without shutting the interpreter down.

    Threads of torch.distributed may still use it, and after a signal nobody wants to wait for it.
    """
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    raise SystemExit(run())
