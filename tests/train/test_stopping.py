"""Signals: the first lets the step finish; what the second does depends on who sent it."""

import os
import signal
from collections.abc import Iterator

import pytest

from sparing.train.stopping import Stop, stopping


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A runner in the background of a shell is started with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_alone_the_second_signal_ends_the_process() -> None:
    with stopping() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert (stop.asked, stop.cause) == (True, signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_under_a_launcher_the_second_signal_is_the_first_passed_on() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stopping(launched=True) as stop:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.cause == signal.SIGINT
    assert signal.getsignal(signal.SIGTERM) == before


def test_among_several_only_what_was_agreed_counts() -> None:
    stop = Stop(agreed=0)
    stop.signal = signal.SIGTERM
    assert not stop.asked
    stop.agreed = signal.SIGINT
    assert (stop.asked, stop.cause) == (True, signal.SIGINT)
