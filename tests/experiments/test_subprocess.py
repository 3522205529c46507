"""Child processes: their output, and the signals they receive."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from sparing.experiments.subprocess import SignalRelay, relay_signals

SOURCE = Path(__file__).parents[2] / "src"
SLEEPER = """
import pathlib, signal, sys, time
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, frame: sys.exit(40 + number))
pathlib.Path(sys.argv[1]).touch()
time.sleep(30)
"""


def python(program: str, *words: str) -> list[str]:
    return [sys.executable, "-c", program, *words]


def test_a_failure_is_reported_by_its_last_line(capfd: pytest.CaptureFixture[str]) -> None:
    program = "import sys; print('  5%\\r 10%', file=sys.stderr); sys.exit('sparing: too hot')"
    assert SignalRelay().run(python(program), shown=False) == (1, "too hot")
    assert capfd.readouterr() == ("", "")
    assert SignalRelay().run(python("import sys; sys.exit(3)"), shown=False) == (3, "exit status 3")
    killed = "import os; print('fine'); os.kill(os.getpid(), 9)"
    assert SignalRelay().run(python(killed), shown=False) == (-9, "killed by SIGKILL")


def test_output_of_a_child_goes_to_standard_error(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert SignalRelay().run(python("print('é' * 3)"), shown=True) == (0, "ééé")
    assert capfd.readouterr() == ("", "ééé\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_passed_on_and_remembered(tmp_path: Path, number: signal.Signals) -> None:
    ready = tmp_path / "ready"

    def strike() -> None:
        while not ready.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    # These tests themselves may run under nohup.
    before = signal.signal(number, signal.SIG_DFL)
    striker = threading.Thread(target=strike)
    try:
        with relay_signals() as relay:
            striker.start()
            assert relay.run(python(SLEEPER, str(ready)), shown=False)[0] == 40 + number
            assert relay.signal == number
        striker.join()
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("early", [False, True])
def test_a_signal_around_the_start_reaches_the_child_once(
    monkeypatch: pytest.MonkeyPatch, early: bool
) -> None:
    sent: list[int] = []

    class Starting(subprocess.Popen[bytes]):
        """Is struck before its parent has gone on."""

        def __init__(self, *words: Any, **more: Any) -> None:
            super().__init__(*words, **more)
            relay.child = None if early else self
            relay.receive(signal.SIGTERM, None)

        def send_signal(self, number: int) -> None:
            sent.append(number)

    relay = SignalRelay()
    monkeypatch.setattr(subprocess, "Popen", Starting)
    relay.run(python(""), shown=False)
    assert sent == [signal.SIGTERM]


def test_a_child_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    ready, program = tmp_path / "ready", tmp_path / "parent.py"
    child = SLEEPER.replace("touch()", "write_text(str(__import__('os').getpid()))")
    program.write_text(
        "from sparing.experiments.subprocess import SignalRelay\n"
        f"SignalRelay().run({python(child, str(ready))!r}, shown=False)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    with subprocess.Popen([sys.executable, str(program)], env=env) as parent:
        while not (ready.exists() and ready.read_text()):
            assert parent.poll() is None
            time.sleep(0.01)
        parent.kill()
    number, give_up_at = int(ready.read_text()), time.monotonic() + 60
    while _lives(number):
        assert time.monotonic() < give_up_at
        time.sleep(0.01)


def _lives(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_output_of_a_child_is_read_after_ours_was_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    reading_end, writing_end = os.pipe()
    os.close(reading_end)
    # Unread, it would block until the alarm.
    program = "import signal; signal.alarm(20)\nfor n in range(100_000): print(n)"
    found = None
    with contextlib.suppress(BrokenPipeError), open(writing_end, "w") as gone:
        monkeypatch.setattr(sys, "stderr", gone)
        found = SignalRelay().run(python(program), shown=True)
    assert found == (0, "99999")


def test_a_process_left_behind_does_not_delay_the_end() -> None:
    program = "import subprocess; subprocess.Popen(['sleep', '3']); print('gone')"
    assert SignalRelay().run(python(program), shown=False) == (0, "gone")
