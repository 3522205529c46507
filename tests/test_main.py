"""The entry point: Ctrl-C during imports."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sparing.__main__ import limit_openmp_spinning

# Ctrl-C while a module is imported, by one that lets it pass or by one that swallows it.
INTERRUPTED = """
import builtins, contextlib, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
imported, (module, swallowed) = builtins.__import__, sys.argv[1:]

def interrupt(name, *rest):
    if name == module:
        with contextlib.suppress(KeyboardInterrupt if swallowed == "yes" else ()):
            os.kill(os.getpid(), signal.SIGINT)
    return imported(name, *rest)

builtins.__import__ = interrupt
sys.argv = ["sparing", "--version"]
from sparing.__main__ import run
sys.exit(run())
"""


@pytest.mark.parametrize(("module", "swallowed"), [("sparing.launch", "no"), ("typer", "yes")])
def test_an_interrupt_while_modules_are_imported_is_quiet(module: str, swallowed: str) -> None:
    said = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, module, swallowed], capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1] / "src")}, check=False,
    )  # fmt: skip
    assert (said.returncode, said.stdout, said.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.parametrize(
    ("chosen", "spins"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "9"}, "9"), ({"OMP_WAIT_POLICY": "ACTIVE"}, None)],
)
def test_openmp_spinning_is_limited_unless_the_user_chose(
    chosen: dict[str, str], spins: str | None
) -> None:
    limit_openmp_spinning(chosen)
    assert chosen.get("GOMP_SPINCOUNT") == spins
