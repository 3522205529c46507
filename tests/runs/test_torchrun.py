"""The plain command under torchrun: kills, freezes, full disks and machines that come and go."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.train.crew import free_port

from sparing.runs.folder import RunFolder
from sparing.train.journal import read

SETTINGS = [
    "model.dim=16", "model.boom_dim=32", "model.memory=48", "train.batch=8", "train.segment=12",
    "train.randomised=true", "train.log_every=5", "train.checkpoint_every=10",
    "train.evaluate_bytes=400", "optim.name=adamw", "optim.lr=3e-3", "optim.eps=1e-4",
]  # fmt: skip
SOURCE = Path(__file__).parents[2] / "src"


def words(out: Path, corpus: Path, steps: int, *more: str) -> list[str]:
    settings = [word for one in (*SETTINGS, f"train.steps={steps}") for word in ("--set", one)]
    start = ["train", "quickstart", "--data", str(corpus), "--out", str(out), *settings]
    return [*start, "--timeout", "20", "--quiet", *more]


def environment(tmp_path: Path) -> dict[str, str]:
    own = {"SPARING_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
    return {**os.environ, "PYTHONPATH": str(SOURCE), **own}


def torchrun(tmp_path: Path, options: list[str], program: list[str]) -> "subprocess.Popen[bytes]":
    launcher = [sys.executable, "-m", "torch.distributed.run", *options, *program]
    with open(tmp_path / "said.txt", "ab") as said:
        return subprocess.Popen(launcher, env=environment(tmp_path), stderr=said, stdout=said)


def on_one_machine(processes: int, restarts: int = 0) -> list[str]:
    # The port is torchrun's own choice; without it, two tests at a time would share one.
    options = ["--nproc-per-node", str(processes), "--max-restarts", str(restarts)]
    return [*options, "--master-port", str(free_port())]


def said(tmp_path: Path) -> str:
    return (tmp_path / "said.txt").read_text(errors="replace")


def ended(launcher: "subprocess.Popen[bytes]", tmp_path: Path) -> int:
    try:
        return launcher.wait(timeout=240)
    finally:
        launcher.kill()
        if launcher.returncode:
            sys.stderr.write(said(tmp_path))


def a_corpus(tmp_path: Path) -> Path:
    corpus = tmp_path / "text.txt"
    corpus.write_text("".join(f"{n} green bottles, {n * n} walls\n" for n in range(400)))
    return corpus


def alone(tmp_path: Path, corpus: Path, steps: int) -> Path:
    out = tmp_path / "alone"
    command = [sys.executable, "-m", "sparing", *words(out, corpus, steps)]
    subprocess.run(command, env=environment(tmp_path), check=True, capture_output=True)
    return out


def steps_done(out: Path) -> int:
    entries = read(out / "metrics.jsonl")
    return int(entries[-1]["step"]) if entries else 0


def wait_for(ready: Callable[[], bool], launcher: "subprocess.Popen[bytes]") -> bool:
    """False if the launcher ended first."""
    while not ready():
        if launcher.poll() is not None:
            return False
        time.sleep(0.01)
    return True


def workers(launcher: "subprocess.Popen[bytes]") -> list[int]:
    listing = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children")
    found = [int(pid) for task in listing.parent.parent.glob("*/children") for pid in _pids(task)]
    return [pid for pid in found if b"sparing" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def _pids(task: Path) -> list[str]:
    try:
        return task.read_text().split()
    except OSError:
        return []


def same_figures(found: Path, wanted: Path) -> None:
    """Every loss of the journal, and the final one, to 1e-5."""
    for kind in ("train", "valid"):
        entries = [
            {e["step"]: e["nats_per_token"] for e in read(out / "metrics.jsonl") if e["kind"] == kind}
            for out in (found, wanted)
        ]
        assert entries[0] == pytest.approx(entries[1], abs=1e-5)


def events(out: Path) -> list[str]:
    return [e["what"] for e in read(out / "metrics.jsonl") if e["kind"] == "event"]


def kill_ranks(tmp_path: Path, *, kills: int, processes: int, steps: int, seed: int) -> None:
    """Kill one rank after the other, each after some more steps; the end must be the same."""
    moments, corpus, out = random.Random(seed), a_corpus(tmp_path), tmp_path / "run"
    wanted = alone(tmp_path, corpus, steps)
    program = ["-m", "sparing", *words(out, corpus, steps)]
    launcher, struck = torchrun(tmp_path, on_one_machine(processes, kills), program), 0
    for number in range(1, kills + 1):
        goal = number * steps // (kills + 2)
        if not wait_for(lambda goal=goal: steps_done(out) >= goal, launcher):  # type: ignore[misc]
            break
        time.sleep(moments.uniform(0, 0.1))
        os.kill(moments.choice(workers(launcher)), signal.SIGKILL)
        struck += 1
        wait_for(lambda number=number: said(tmp_path).count("exitcode: -9") >= number, launcher)  # type: ignore[misc]
    assert ended(launcher, tmp_path) == 0
    assert struck == kills
    same_figures(out, wanted)
    assert len(events(out)) == kills
    assert all("started anew by torchrun" in what for what in events(out))


def test_a_killed_rank_leaves_no_trace_in_the_figures(tmp_path: Path) -> None:
    kill_ranks(tmp_path, kills=1, processes=2, steps=60, seed=1)


@pytest.mark.soak
def test_ten_killed_ranks_leave_no_trace_in_the_figures(tmp_path: Path) -> None:
    kill_ranks(tmp_path, kills=10, processes=3 - 1, steps=600, seed=2)
