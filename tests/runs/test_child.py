"""Processes that are listened to, and told of signals."""

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from sparing.runs.child import Relay, relaying

SLEEPER = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(40 + number))
pathlib.Path(sys.argv[1]).touch()
time.sleep(30)
"""


def python(program: str, *words: str) -> list[str]:
    return [sys.executable, "-c", program, *words]


def test_a_failure_is_told_by_its_last_line(capfd: pytest.CaptureFixture[str]) -> None:
    program = "import sys; print('  5%\\r 10%', file=sys.stderr); sys.exit('sparing: too hot')"
    assert Relay().run(python(program), shown=False) == (1, "too hot")
    assert capfd.readouterr() == ("", "")
    assert Relay().run(python("import sys; sys.exit(3)"), shown=False) == (3, "exit status 3")
    killed = "import os; print('fine'); os.kill(os.getpid(), 9)"
    assert Relay().run(python(killed), shown=False) == (-9, "killed by SIGKILL")


def test_what_a_child_says_is_shown_beside_standard_output(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert Relay().run(python("print('é' * 3)"), shown=True) == (0, "ééé")
    assert capfd.readouterr() == ("", "ééé\n")


def test_a_signal_is_passed_on_and_remembered(tmp_path: Path) -> None:
    ready = tmp_path / "ready"

    def strike() -> None:
        while not ready.exists():
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    striker = threading.Thread(target=strike)
    with relaying() as relay:
        striker.start()
        assert relay.run(python(SLEEPER, str(ready)), shown=False)[0] == 40 + signal.SIGTERM
        assert relay.signal == signal.SIGTERM
    striker.join()
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_process_left_behind_does_not_hold_up_the_end() -> None:
    program = "import subprocess; subprocess.Popen(['sleep', '3']); print('gone')"
    assert Relay().run(python(program), shown=False) == (0, "gone")
