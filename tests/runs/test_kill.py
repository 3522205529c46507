"""A run that is killed at any moment and resumed is bit-equal to one that was not."""

import os
import pty
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sparing.training.journal import TIMINGS, read

SETTINGS = [
    "model.dim=16", "model.boom_dim=32", "model.memory=48", "model.dropout_hidden=0.2",
    "train.batch=4", "train.segment=12", "train.randomised=true", "train.steps=60",
    "train.state_reset=0.2",
    "train.log_every=3", "train.checkpoint_every=4", "train.evaluate_every=10",
    "train.evaluate_bytes=400", "schedule.shape=cosine", "schedule.warmup=5",
]  # fmt: skip


def command(out: Path, corpus: Path, *more: str) -> list[str]:
    words = [word for setting in SETTINGS for word in ("--set", setting)]
    start = ["quickstart", "--data", str(corpus), *words]
    base = [sys.executable, "-m", "sparing", "train", "--out", str(out), "--quiet"]
    return [*base, *(more or start)]


def environment(tmp_path: Path) -> dict[str, str]:
    source = Path(__file__).parents[2] / "src"
    return {
        **os.environ,
        "PYTHONPATH": str(source),
        "SPARING_HOME": str(tmp_path / "home"),
        "OMP_NUM_THREADS": "1",
    }


def metrics(out: Path) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in entry.items() if key not in TIMINGS}
        for entry in read(out / "metrics.jsonl")
    ]


def kill_when(process: subprocess.Popen[bytes], out: Path, lines: int, delay_s: float) -> bool:
    """Let the journal grow to `lines`, wait a moment, and kill; False if the run ended first."""
    while process.poll() is None:
        if (out / "metrics.jsonl").exists() and len(read(out / "metrics.jsonl")) >= lines:
            time.sleep(delay_s)
            process.send_signal(signal.SIGKILL)
            process.wait()
            return process.returncode == -signal.SIGKILL
        time.sleep(0.002)
    return False


def survive(tmp_path: Path, kills: int, seed: int) -> None:
    moments, corpus = random.Random(seed), tmp_path / "text.txt"
    corpus.write_text("".join(f"{n} green bottles, {n * n} walls\n" for n in range(400)))
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    subprocess.run(command(whole, corpus), env=environment(tmp_path), check=True)
    struck, words = 0, command(broken, corpus)
    for _ in range(kills):
        process = subprocess.Popen(words, env=environment(tmp_path))
        at = len(read(broken / "metrics.jsonl")) if broken.exists() else 0
        lines = at + moments.randint(1, 3)
        struck += kill_when(process, broken, lines, moments.uniform(0, 0.05))
        words = command(broken, corpus, "--resume")
        if process.returncode == 0:
            break
    assert struck
    subprocess.run(words, env=environment(tmp_path), check=True)
    assert metrics(broken) == metrics(whole)
    for name in ("last", "best"):
        weights = Path("checkpoints") / name / "model.safetensors"
        assert (broken / weights).read_bytes() == (whole / weights).read_bytes()


# Kills at chosen moments, without the seconds that a new process takes: test_crash.py.
@pytest.mark.soak
@pytest.mark.parametrize("seed", range(6))
def test_four_kills_of_many_runs_change_nothing(seed: int, tmp_path: Path) -> None:
    survive(tmp_path, kills=4, seed=100 + seed)


def test_a_signal_leaves_a_checkpoint_and_an_exit_status(tmp_path: Path) -> None:
    corpus, out = tmp_path / "text.txt", tmp_path / "out"
    corpus.write_text("all work and no play\n" * 900)
    env = environment(tmp_path)
    # So long that it cannot end by itself, however late this process gets its turn.
    long = [*command(out, corpus), "--set", "train.steps=40000"]
    process = subprocess.Popen(long, env=env, stderr=subprocess.PIPE)
    while not (out / "metrics.jsonl").exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, said
    assert b"--resume" in said
    assert (out / "checkpoints" / "last" / "manifest.json").exists()


# Runs a command on the terminal that it is given as its input, as the leader of a session.
ON_TERMINAL = "import os, sys; os.login_tty(0); os.execv(sys.argv[1], sys.argv[1:])"


@pytest.mark.soak
def test_a_closed_terminal_leaves_a_checkpoint(tmp_path: Path) -> None:
    corpus, out = tmp_path / "text.txt", tmp_path / "out"
    corpus.write_text("all work and no play\n" * 900)
    screen, terminal = pty.openpty()
    words = [word for word in command(out, corpus) if word != "--quiet"]
    # Steps enough to be struck during one, with a progress bar that is then written to nowhere.
    start = [sys.executable, "-c", ON_TERMINAL, *words, "--set", "train.steps=40000"]
    process = subprocess.Popen(start, env=environment(tmp_path), stdin=terminal)
    os.close(terminal)
    while not (out / "metrics.jsonl").exists() and process.poll() is None:
        time.sleep(0.01)
    os.close(screen)
    assert process.wait() == 128 + signal.SIGHUP
    assert (out / "checkpoints" / "last" / "manifest.json").exists()
