"""The engine, with trials that only pretend to train. tests/cli has those that do."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparing.data.vocab import ByteVocab
from sparing.errors import UserError
from sparing.experiments import engine
from sparing.experiments.engine import Experiment, ExperimentOptions, Supplement
from sparing.experiments.subprocess import SignalRelay
from sparing.experiments.variants import Variant
from sparing.runs.config import RunConfig, from_json
from sparing.runs.folder import create
from sparing.runs.layout import Layout
from sparing.runs.recipes import recipe
from sparing.runs.train import TrainOptions

BASE = recipe("quickstart")
LAYOUT = Layout(columns={"variant": lambda row: row["name"], "kind": lambda row: row["kind"]})


class Trainer:
    """Stands for the child processes: leaves the run of each training, and fails on request."""

    def __init__(self, *failing: str) -> None:
        self.calls: list[list[str]] = []
        self.failing = failing

    def run(self, relay: SignalRelay, command: Sequence[str], *, shown: bool) -> tuple[int, str]:
        verb, *words = command[3:]
        self.calls.append([verb, *words])
        if verb in self.failing:
            return 2, f"cannot {verb}"
        if verb == "train" and "--resume" not in words:
            run = from_json(json.loads(Path(words[0]).read_text()))
            self.leave_run(run, Path(words[words.index("--out") + 1]))
        return 0, "done"

    def leave_run(self, run: RunConfig, path: Path) -> None:
        valid = {"kind": "valid", "step": 4, "bits_per_byte": 1.5, "bytes": 9}
        create(path, run, ByteVocab(), {}).metrics.write_text(json.dumps(valid) + "\n")


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Trainer:
    found = Trainer()
    run = lambda relay, command, *, shown: found.run(relay, command, shown=shown)  # noqa: E731
    monkeypatch.setattr(SignalRelay, "run", run)
    monkeypatch.setattr(engine, "_check_variants", lambda variants, _: dict.fromkeys("ab", 9))
    return found


def experiment(out: Path, messages: list[str] | None = None, **options: Any) -> Experiment:
    train = TrainOptions(device="cpu", progress=False, source=Path("text"))
    said = [] if messages is None else messages
    model = replace(BASE.model, memory=7)
    variants = [Variant("a", BASE), Variant("b", replace(BASE, model=model))]
    shared = ExperimentOptions(train=train, message=said.append, **options)
    found = Experiment(variants, out / "board.json", LAYOUT, shared)
    found.supplement = Supplement(facts={"a": {"kind": "one"}, "b": {"kind": "two"}}, notes=["!"])
    return found


def test_a_trial_is_trained_then_tested_with_the_same_device_and_text(
    tmp_path: Path, trainer: Trainer
) -> None:
    signal, record = experiment(tmp_path, tested=True).run()
    assert (signal, [call[0] for call in trainer.calls]) == (0, ["train", "evaluate"] * 2)
    for call in trainer.calls:
        assert call[call.index("--device") + 1] == "cpu"
        assert call[call.index("--from") + 1] == "text"
    assert record["trials"] == {"a-seed1": "finished", "b-seed1": "finished"}
    assert record == json.loads((tmp_path / "board.json").read_text())
    assert [row["kind"] for row in record["rows"]] == ["one", "two"]
    assert "!" in record["notes"]
    assert "| b | two |" in (tmp_path / "board.md").read_text()
    stored = json.loads((tmp_path / "b-seed1" / "config.json").read_text())
    assert stored["model"]["memory"] == 7


def test_a_failed_test_is_repeated_without_another_training(
    tmp_path: Path, trainer: Trainer
) -> None:
    trainer.failing, messages = ("evaluate",), list[str]()
    _, record = experiment(tmp_path, messages, tested=True).run()
    assert [row["status"] for row in record["rows"]] == ["failed", "failed"]
    assert messages == [f"{name}, seed 1, failed: cannot evaluate" for name in "ab"]
    trainer.failing, trainer.calls = (), []
    _, record = experiment(tmp_path, tested=True).run()
    assert [call[1] for call in trainer.calls if call[0] == "train"] == ["--resume"] * 2
    assert [row["status"] for row in record["rows"]] == ["finished", "finished"]


def test_finished_trials_are_kept_and_seeds_added(tmp_path: Path, trainer: Trainer) -> None:
    experiment(tmp_path).run()
    trainer.calls = []
    found = experiment(tmp_path, seeds=2)
    found.run()
    outs = [Path(call[call.index("--out") + 1]).name for call in trainer.calls]
    assert outs == ["a-seed2", "b-seed2"]
    assert len(found.finished_trials()) == 4
    seeds = [trial.run.train.seed for trial in found.trials]
    assert seeds == [BASE.train.seed] * 2 + [BASE.train.seed + 1] * 2


def test_no_trial_starts_after_a_signal(
    tmp_path: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(relay: SignalRelay, command: Sequence[str], *, shown: bool) -> tuple[int, str]:
        relay.signal = 15
        return trainer.run(relay, command, shown=shown)[0] or 143, "stopped"

    monkeypatch.setattr(SignalRelay, "run", stop)
    signal, record = experiment(tmp_path, tested=True).run()
    assert (signal, record["trials"]) == (15, {})
    assert len(trainer.calls) == 1
    assert [row["status"] for row in record["rows"]] == ["unfinished", "unfinished"]


def test_an_experiment_without_seeds_is_refused() -> None:
    with pytest.raises(UserError, match="at least one seed"):
        ExperimentOptions(seeds=0, train=TrainOptions(), message=print)


def test_a_run_with_other_settings_is_refused(tmp_path: Path, trainer: Trainer) -> None:
    trainer.leave_run(replace(BASE, train=replace(BASE.train, steps=5)), tmp_path / "a-seed1")
    with pytest.raises(UserError, match=r"a-seed1 has other settings \(train.steps"):
        experiment(tmp_path)
