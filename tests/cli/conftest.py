"""The command line in this process, with a home of its own and a small text."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sparing.cli.main import main

TINY = [
    "model.dim=16",
    "model.boom_dim=32",
    "model.memory=64",
    "train.batch=4",
    "train.segment=16",
    "train.log_every=2",
    "evaluate.batch=4",
    "evaluate.segment=32",
    "train.steps=12",
]


@dataclass(frozen=True)
class Said:
    """What a command printed and how it ended."""

    status: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


Sparing = Callable[..., Said]


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("SPARING_HOME", str(folder))
    monkeypatch.delenv("SPARING_DATA", raising=False)
    return folder


@pytest.fixture
def sparing(capfd: pytest.CaptureFixture[str]) -> Sparing:
    def call(*words: object) -> Said:
        capfd.readouterr()
        status = main([str(word) for word in words])
        printed = capfd.readouterr()
        return Said(status, printed.out, printed.err)

    return call


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    lines = [f"line {n}: the quick brown fox jumps over {n * n} lazy dogs\n" for n in range(300)]
    path.write_text("".join(lines))
    return path


@pytest.fixture
def run(sparing: Sparing, corpus: Path, tmp_path: Path) -> Path:
    """A trained tiny run."""
    path = tmp_path / "run"
    said = sparing("train", "quickstart", "--data", corpus, "--out", path, *settings(), "--quiet")
    assert said.status == 0, said.err
    return path


def settings(*more: str) -> list[str]:
    return [word for setting in (*TINY, *more) for word in ("--set", setting)]
