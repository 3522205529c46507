"""A full disk: the error is one line, and existing files still work."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Sparing, settings

SOURCE = str(Path(__file__).parents[2] / "src")

LIMITED = """
import resource, signal, sys
from sparing.cli.main import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
sys.exit(main(sys.argv[2:]))
"""

# In its own mount namespace: a run on a small disk.
SMALL_DISK = """
import contextlib, io, json, os, shutil, subprocess, sys
from pathlib import Path
from sparing.cli.main import main

# Its thread would print a traceback of its own.
sys.modules["torch.utils.tensorboard"] = None
disk, corpus, *words = sys.argv[1:]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk], check=True)
run, filler = Path(disk, "run"), Path(disk, "filler")

def call(*words):
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        return main([str(word) for word in words]), said.getvalue()

def fill(free_bytes):
    with open(filler, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    os.truncate(filler, max(0, filler.stat().st_size - free_bytes))
"""

# Resumed with more and more free space.
RESUMED = (
    SMALL_DISK
    + """
found, steps = [call("train", "quickstart", "--data", corpus, "--out", run, "--quiet", *words)], 12
for pages in (0, 1, 2, 4, 8, 16, 24, 32, 48):
    steps += 1
    fill(4096 * pages)
    resumed = call("train", "--resume", "--out", run, "--set", f"train.steps={steps}", "--quiet")
    filler.unlink()
    evaluated = call("evaluate", run, "--checkpoint", "last", "--bytes", 50)
    names = [path.name for path in run.rglob("*")]
    left = [name for name in names if "incoming" in name or name.endswith(".part")]
    found.append([*resumed, *evaluated, left])
found.append(call("train", "--resume", "--out", run, "--set", "train.steps=40", "--quiet"))
print(json.dumps(found))
"""
)

# Started with more and more free space, and again, or resumed if it says so, with all of it.
STARTED = (
    SMALL_DISK
    + """
start, found = ["train", "quickstart", "--data", corpus, "--out", run, "--quiet", *words], []
for pages in (0, 1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 40, 56, 72):
    fill(4096 * pages)
    status, said = call(*start)
    filler.unlink()
    way_on = said.split("to continue: sparing ")
    again = way_on[1].split() if len(way_on) > 1 else start
    found.append([status, said, *call(*again), *call("evaluate", run, "--bytes", 50)])
    shutil.rmtree(run)
print(json.dumps(found))
"""
)


def python(
    program: str, *words: object, within: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*within, sys.executable, "-c", program, *map(str, words)],
        env=os.environ | {"PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip


def one_line(said: str, *words: str) -> None:
    assert len(said.strip().splitlines()) == 1, said
    for word in words:
        assert word in said


def test_a_checkpoint_that_does_not_fit_leaves_the_previous_one(
    run: Path, sparing: Sparing
) -> None:
    last = run / "checkpoints" / "last"
    limit = (last / "model.safetensors").stat().st_size // 2
    words = ["train", "--resume", "--out", run, "--set", "train.steps=14", "--quiet"]
    said = python(LIMITED, limit, *words)
    assert said.returncode == 2, said.stderr
    one_line(said.stderr, "model.safetensors: File too large")
    assert not list(run.rglob("*incoming*"))
    assert sparing("evaluate", run, "--checkpoint", "last", "--bytes", 50).status == 0
    assert sparing(*words).status == 0


def test_tokens_that_do_not_fit_leave_nothing(corpus: Path, home: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["train", "quickstart", "--data", corpus, "--out", out, "--quiet", *settings()]
    said = python(LIMITED, 9000, *words)
    assert said.returncode == 2, said.stderr
    one_line(said.stderr, "train.bin: File too large")
    assert not out.exists()
    assert not list((home / "tokens").iterdir())


def mounted(disk: Path) -> bool:
    words = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", str(disk)]
    try:
        return subprocess.run(words, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def on_small_disk(program: str, folder: Path, *words: object) -> Any:
    """What the program prints as JSON."""
    disk = folder / "disk"
    disk.mkdir()
    if not mounted(disk):
        pytest.skip("needs the right to mount a tmpfs in a namespace of its own")
    said = python(program, disk, *words, within=("unshare", "-rm"))
    assert said.returncode == 0, said.stderr
    return json.loads(said.stdout)


def test_a_run_on_a_full_disk_can_be_resumed(corpus: Path, tmp_path: Path) -> None:
    first, *rest, last = on_small_disk(RESUMED, tmp_path, corpus, *settings())
    assert first[0] == last[0] == 0, (first, last)
    outcomes: list[Any] = [status for status, *_ in rest]
    assert outcomes.count(2) > 3
    for status, why, evaluated, complaint, left in rest:
        assert (evaluated, complaint.count("Traceback"), left) == (0, 0, []), complaint
        if status:
            one_line(why, "no space left")


@pytest.mark.parametrize("tuned", [False, True])
def test_a_run_that_does_not_fit_on_the_disk_says_how_to_go_on(
    tuned: bool, corpus: Path, run: Path, tmp_path: Path
) -> None:
    words = [*settings("train.checkpoint_every=4"), *(["--init", run] if tuned else [])]
    outcomes = on_small_disk(STARTED, tmp_path, corpus, *words)
    assert sum(status == 2 for status, *_ in outcomes) > 9
    for status, why, again, said, evaluated, complaint in outcomes:
        assert (again or evaluated) == 0, (why, said, complaint)
        if status:
            one_line(why, "no space left")
