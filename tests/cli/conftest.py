"""The command line in this process, with a home of its own and a small text."""

import contextlib
import io
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sparing.cli.main import main
from sparing.experiments.subprocess import SignalRelay

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
    # Where it is set, tables are as wide as the terminal of whoever runs the tests.
    monkeypatch.delenv("COLUMNS", raising=False)
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


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials of an experiment within this process: starting one takes seconds."""

    def run(self: SignalRelay, command: Sequence[str], *, shown: bool) -> tuple[int, str]:
        assert command[:3] == [sys.executable, "-m", "sparing"]
        verb, *arguments = command[3:]
        path = Path(arguments[0] if verb == "evaluate" else arguments[arguments.index("--out") + 1])
        (record,) = path.parent.glob("*.json")
        # Otherwise a kill now would leave a half-trained folder that counts as finished.
        assert path.name not in json.loads(record.read_text())["trials"]
        with contextlib.redirect_stdout(io.StringIO()):
            return main(command[3:]), "a reason"

    monkeypatch.setattr(SignalRelay, "run", run)


def settings(*more: str) -> list[str]:
    return [word for setting in (*TINY, *more) for word in ("--set", setting)]
