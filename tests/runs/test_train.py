"""A run's way back in, and what its processes must have in common."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from sparing.cli.main import main
from sparing.device import Hardware
from sparing.runs.folder import RunFolder
from sparing.train.distributed import Ranks

SETTINGS = [
    "model.dim=16", "model.boom_dim=32", "model.memory=16", "train.batch=4", "train.segment=12",
    "train.evaluate_bytes=200", "train.checkpoint_every=4", "schedule.shape=constant",
]  # fmt: skip


class Killed(BaseException):
    """Ends a command without a word, as SIGKILL would."""


def killed(*_: Any, **__: Any) -> None:
    raise Killed


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run killed before it was judged: `last` is of step 6, `previous` of step 4."""
    monkeypatch.setenv("SPARING_HOME", str(tmp_path / "home"))
    corpus, out = tmp_path / "text.txt", tmp_path / "run"
    corpus.write_text("".join(f"{n} green bottles, {n * n} walls\n" for n in range(300)))
    words = [word for one in (*SETTINGS, "train.steps=6") for word in ("--set", one)]
    start = ["train", "quickstart", "--data", str(corpus), "--out", str(out), "--quiet"]
    with monkeypatch.context() as patched:
        patched.setattr("sparing.runs.train._judge", killed)
        with pytest.raises(Killed):
            main([*start, *words])
    assert [RunFolder(out).step(name) for name in ("last", "previous")] == [6, 4]
    return out


def resume(out: Path, *more: str) -> int:
    words = ["train", "--resume", "--out", str(out), "--quiet", "--set", "train.steps=8"]
    return main([*words, *more])


@pytest.mark.parametrize("moment", ["fit", "journal.rewind"])
@pytest.mark.parametrize("more", [(), ("--set", "optim.lr=1e-4")])
def test_what_previous_was_chosen_over_does_not_come_back_after_a_kill(
    moment: str, more: tuple[str, ...], out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(f"sparing.runs.train.{moment}", killed)
        with pytest.raises(Killed):
            resume(out, "--checkpoint", "previous", *more)
    assert RunFolder(out).step("last") == 4
    # The same command again means the same weights.
    assert RunFolder(out).step("previous") == 4
    assert resume(out) == 0


class Odd(Ranks):
    """Keeps what the processes were to agree on."""

    def __init__(self) -> None:
        self.facts: list[str] = []

    def agree(self, what: str, facts: Any) -> None:
        self.facts.append(json.dumps(facts, sort_keys=True))


@pytest.mark.parametrize(
    "odd", [["--shard"], ["--checkpoint", "best"], ["--set", "train.precision=bfloat16"]]
)
def test_processes_that_differ_in_what_was_asked_for_do_not_agree(
    odd: list[str], out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = Odd()
    monkeypatch.setattr("sparing.runs.train.together", lambda *_: nullcontext(ranks))
    monkeypatch.setattr("sparing.runs.train._training", killed)
    for more in ([], [], odd):
        with pytest.raises(Killed):
            resume(out, *more)
    first, again, other = ranks.facts
    assert first == again != other


def test_the_precision_a_device_settles_on_is_agreed_on(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = Odd()
    monkeypatch.setattr("sparing.runs.train.together", lambda *_: nullcontext(ranks))
    monkeypatch.setattr("sparing.runs.train._training", killed)
    for precision in ("float32", "bfloat16"):
        hardware = Hardware(torch.device("cpu"), precision)  # type: ignore[arg-type]
        monkeypatch.setattr("sparing.device.pick", lambda *_, found=hardware: found)
        with pytest.raises(Killed):
            resume(out)
    assert ranks.facts[0] != ranks.facts[1]
