"""After a resume, `best` is the best checkpoint of the journal as it then is."""

from pathlib import Path
from typing import Any

import pytest
from tests.runs.conftest import Killed, killed, resume, start_words

from sparing.cli.main import main
from sparing.runs import callbacks
from sparing.runs.folder import RunFolder
from sparing.training import checkpoint, journal
from sparing.training.checkpoint import Checkpoint

BUDGET = ("--set", "train.steps=16")


@pytest.fixture
def losses(monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """The valid loss of each step, in place of what is measured; any other step is a kill."""
    chosen = {2: 1.9, 4: 1.8, 6: 1.7, 8: 1.6, 10: 1.65, 12: 1.5}
    measure = callbacks._validate

    def validate(run: Any, tokens: Any, training: Any, model: Any) -> dict[str, Any]:
        if (step := training.counters.step) not in chosen:
            raise Killed
        measured = measure(run, tokens, training, model)
        return {**measured, "nats_per_token": chosen[step], "bits_per_byte": chosen[step]}

    monkeypatch.setattr(callbacks, "_validate", validate)
    return chosen


@pytest.fixture
def killed_late(losses: dict[int, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that is killed at step 14, after a `best` that is later than its `last`."""
    every = ["train.evaluate_every=2", "train.checkpoint_every=5", "train.steps=16"]
    out, start = start_words(tmp_path, monkeypatch, *every)
    with pytest.raises(Killed):
        main(start)
    assert steps(out) == {"last": 10, "previous": 5, "best": 12}
    return out


def steps(out: Path) -> dict[str, int]:
    folder = RunFolder(out)
    return {name: folder.step(name) for name in checkpoint.list_names(folder.checkpoints)}


def best_of_journal(out: Path) -> int:
    best = journal.best(journal.read(out / "metrics.jsonl"))
    assert best is not None
    return int(best["step"])


def best_in_results(out: Path) -> int:
    return RunFolder(out).results()["best_valid"]["step"]


def resume_until(moment: str, out: Path, *more: str) -> None:
    """Resume a run, and kill it at a function."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(f"sparing.runs.{moment}", killed)
        with pytest.raises(Killed):
            resume(out, *BUDGET, *more)


@pytest.mark.parametrize(("name", "before"), [("last", 8), ("previous", 4)])
@pytest.mark.parametrize(("loss", "after"), [(1.85, None), (1.1, 12)])
def test_a_best_that_a_resume_discards_gives_way_to_the_one_before(
    name: str,
    before: int,
    loss: float,
    after: int | None,
    killed_late: Path,
    losses: dict[int, float],
) -> None:
    resume_until("train.fit", killed_late, "--checkpoint", name)
    assert steps(killed_late)["best"] == best_of_journal(killed_late) == before
    losses.update({6: 1.85, 8: 1.85, 10: 1.85, 12: loss, 14: 1.85, 16: 1.85})
    assert resume(killed_late, *BUDGET) == 0
    assert steps(killed_late)["best"] == best_of_journal(killed_late) == (after or before)
    assert best_in_results(killed_late) == (after or before)
    assert checkpoint.is_intact(killed_late / "checkpoints", "best")


def test_the_results_of_a_finished_run_name_the_best_that_it_goes_back_to(
    killed_late: Path, losses: dict[int, float]
) -> None:
    losses.update({14: 1.55, 16: 1.4})
    assert resume(killed_late, *BUDGET) == 0
    assert (
        RunFolder(killed_late).results()["best_valid"]["step"] == steps(killed_late)["best"] == 16
    )
    resume_until("train.fit", killed_late, "--checkpoint", "previous")
    assert (
        RunFolder(killed_late).results()["best_valid"]["step"] == steps(killed_late)["best"] == 12
    )


def test_a_kill_between_the_earlier_best_and_its_last_is_undone(killed_late: Path) -> None:
    resume_until("resume._save_as_last", killed_late, "--checkpoint", "previous")
    resume_until("train.fit", killed_late)
    assert steps(killed_late) == {"last": 10, "previous": 5, "best": 8}


def test_a_resume_from_before_the_first_validation_leaves_no_best(
    losses: dict[int, float], killed_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # `last` is of step 6; the first validation and its `best` are of step 7.
    losses[7] = 1.0
    every = ("--set", "train.evaluate_every=7")
    monkeypatch.setattr("sparing.training.loop.save_last", killed)
    with pytest.raises(Killed):
        resume(killed_run, *every)
    assert steps(killed_run) == {"last": 6, "previous": 4, "best": 7}
    resume_until("train.fit", killed_run)
    assert steps(killed_run) == {"last": 6, "previous": 4}


def test_the_best_of_another_program_stays_until_there_is_a_better_one(
    losses: dict[int, float], killed_run: Path
) -> None:
    # Imported weights are a `best` at step 0, without a validation before them.
    folder = RunFolder(killed_run)
    identity = folder.config().identity()
    last = checkpoint.load(folder.checkpoints, "last", identity)
    imported = Checkpoint({"model": last.tensors["model"]}, {**last.cursor, "step": 0})
    checkpoint.save(folder.checkpoints, "best", imported, identity)
    resume_until("train.fit", killed_run, "--checkpoint", "best")
    for _ in range(2):
        resume_until("train.fit", killed_run)
        assert steps(killed_run)["best"] == 0
