"""Resuming a run that was killed."""

import shutil
from pathlib import Path

import pytest
from tests.runs.conftest import Killed, killed, resume

from sparing.runs.folder import RunFolder
from sparing.train import checkpoint
from sparing.train.checkpoint import Checkpoint


@pytest.mark.parametrize("moment", ["train.fit", "resume.journal.rewind"])
@pytest.mark.parametrize("more", [(), ("--set", "optim.lr=1e-4")])
def test_a_checkpoint_not_chosen_does_not_come_back_after_a_kill(
    moment: str, more: tuple[str, ...], killed_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(f"sparing.runs.{moment}", killed)
        with pytest.raises(Killed):
            resume(killed_run, "--checkpoint", "previous", *more)
    assert RunFolder(killed_run).step("last") == 4
    # The same command again means the same weights.
    assert RunFolder(killed_run).step("previous") == 4
    assert resume(killed_run) == 0


def test_losses_of_another_text_are_not_compared_with_the_best(killed_run: Path) -> None:
    assert resume(killed_run) == 0
    folder = RunFolder(killed_run)
    first = folder.read("results")["best_valid"]
    # A loss that none of these weights can reach.
    saved = checkpoint.load(folder.checkpoints, "last", folder.config().identity())
    luck = Checkpoint(saved.tensors, {**saved.cursor, "best_nats": 0.01})
    checkpoint.save(folder.checkpoints, "last", luck, folder.config().identity())
    more = ("--set", "train.steps=9", "--set", "train.evaluate_bytes=300")
    assert resume(killed_run, *more) == 0
    best = folder.read("results")["best_valid"]
    assert (first["bytes"], best["bytes"]) == (200, 300)
    assert best["step"] == folder.step("best") == 9


def test_a_run_with_results_but_no_weights_does_not_start_again(
    killed_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert resume(killed_run) == 0
    journal, results = ((killed_run / n).read_text() for n in ("metrics.jsonl", "results.json"))
    shutil.rmtree(killed_run / "checkpoints")
    assert resume(killed_run) == 2
    assert "has results but no checkpoint" in capsys.readouterr().err
    assert (killed_run / "metrics.jsonl").read_text() == journal
    assert (killed_run / "results.json").read_text() == results


def test_resuming_a_finished_run_changes_nothing(
    killed_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert resume(killed_run) == 0
    results, config = ((killed_run / f"{n}.json").read_text() for n in ("results", "config"))
    assert resume(killed_run) == 0
    assert resume(killed_run, "--set", "train.steps=5") == 2
    assert "budget is used up: 8 steps" in capsys.readouterr().err
    assert (killed_run / "results.json").read_text() == results
    assert (killed_run / "config.json").read_text() == config
