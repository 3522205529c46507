"""Signals that ask a process to stop, answered even while it is inside a long call of a library."""

import ctypes
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread, Timer, current_thread, main_thread
from types import FrameType

Answer = Callable[[int], None]
Handler = Callable[[int, FrameType | None], None]
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PR_SET_PDEATHSIG = 1
"""The option of Linux's `prctl` that sets the signal sent when the parent dies."""
GRACE_S = 0.6
"""How long Ctrl-C may take to end a command in an orderly way."""


@contextmanager
def catch_stop_signals(handler: Handler) -> Iterator[None]:
    """Handle Ctrl-C, SIGTERM and a closed terminal inside the block; restore the old handlers.

    Under `nohup`, a closed terminal stays ignored.
    """
    if current_thread() is not main_thread():
        # Only the main thread may set handlers; elsewhere (notebooks, tests) nothing is caught.
        yield
        return
    old = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    if old[signal.SIGHUP] == signal.SIG_IGN:
        del old[signal.SIGHUP]
    try:
        for number in old:
            signal.signal(number, handler)
        yield
    finally:
        for number, before in old.items():
            signal.signal(number, before)


@contextmanager
def answer_signals(answer: Answer) -> Iterator[None]:
    """Inside the block, call `answer` with each signal that has a handler, in another thread.

    Python runs the handlers themselves between two operations of the main thread. A backward pass
    is a single operation, and takes minutes if a model for GPUs is trained on a CPU.
    """
    if current_thread() is not main_thread():
        yield
        return
    reading_end, writing_end = socket.socketpair()
    writing_end.setblocking(False)
    thread = Thread(target=_answer_all, args=(reading_end, answer), daemon=True)
    before = signal.set_wakeup_fd(writing_end.fileno(), warn_on_full_buffer=False)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        writing_end.close()
        thread.join()


def _answer_all(reading_end: socket.socket, answer: Answer) -> None:
    with reading_end:
        while numbers := reading_end.recv(1):
            answer(numbers[0])


def end_soon(number: int) -> None:
    """Answer to Ctrl-C where it raises KeyboardInterrupt: no library may delay that for long."""
    if number == signal.SIGINT and signal.getsignal(number) is signal.default_int_handler:
        timer = Timer(GRACE_S, end_now, [number])
        timer.daemon = True
        timer.start()


@contextmanager
def outlive_interrupts() -> Iterator[None]:
    """Inside the block, Ctrl-C raises KeyboardInterrupt, and `end_soon` lets the process live."""
    before = signal.getsignal(signal.SIGINT)
    if current_thread() is not main_thread() or before is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, lambda number, frame: signal.default_int_handler(number, frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def end_now(number: int) -> None:
    """End this process as if by the signal; its files are whole at any moment."""
    os._exit(128 + number)


def end_with_parent(parent: int | None = None) -> None:
    """Make Linux send this process SIGTERM when its parent ends, even if that one is killed.

    If process `parent` has ended before, no signal will ever come: then exit at once.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        sys.exit(f"process {parent}, which started this one, has ended")
