"""A run that was killed, and the command that resumes it."""

from pathlib import Path
from typing import Any

import pytest

from sparing.cli.main import main
from sparing.runs.folder import RunFolder

SETTINGS = [
    "model.dim=16", "model.boom_dim=32", "model.memory=16", "train.batch=4", "train.segment=12",
    "train.evaluate_bytes=200", "train.checkpoint_every=4", "schedule.shape=constant",
]  # fmt: skip


class Killed(BaseException):
    """Ends a command without a message, as SIGKILL would."""


def killed(*_: Any, **__: Any) -> None:
    raise Killed


@pytest.fixture
def killed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run killed before its validation: `last` is of step 6, `previous` of step 4."""
    out = start_and_kill(tmp_path, monkeypatch, "sparing.runs.callbacks._validate")
    assert [RunFolder(out).step(name) for name in ("last", "previous")] == [6, 4]
    return out


@pytest.fixture
def early_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run killed before its first `last`, at step 4; its only checkpoint is a `best`."""
    at = "sparing.training.loop.save_last"
    out = start_and_kill(tmp_path, monkeypatch, at, "train.evaluate_every=2")
    assert [path.name for path in RunFolder(out).checkpoints.iterdir()] == ["best"]
    return out


def start_and_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, *more: str
) -> Path:
    """Start a run of six steps, and kill it at a function."""
    out, start = start_words(tmp_path, monkeypatch, "train.steps=6", *more)
    with monkeypatch.context() as patched:
        patched.setattr(moment, killed)
        with pytest.raises(Killed):
            main(start)
    return out


def start_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *more: str
) -> tuple[Path, list[str]]:
    """The folder of a run, and the command that starts it."""
    monkeypatch.setenv("SPARING_HOME", str(tmp_path / "home"))
    corpus, out = tmp_path / "text.txt", tmp_path / "run"
    corpus.write_text("".join(f"{n} green bottles, {n * n} walls\n" for n in range(300)))
    words = [word for one in (*SETTINGS, *more) for word in ("--set", one)]
    start = ["train", "quickstart", "--data", str(corpus), "--out", str(out), "--quiet"]
    return out, [*start, *words]


def contents(path: Path) -> dict[str, bytes]:
    """All files of a run by name, without the locks."""
    files = [file for file in path.rglob("*") if file.is_file() and "lock" not in file.name]
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def resume(out: Path, *more: str) -> int:
    words = ["train", "--resume", "--out", str(out), "--quiet", "--set", "train.steps=8"]
    return main([*words, *more])
