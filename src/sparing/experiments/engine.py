"""The engine of every experiment: trains variants times seeds, resumes, averages and tabulates."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparing import device, files
from sparing.data.tokens import prepare
from sparing.errors import UserError
from sparing.experiments.leaderboard import average_seeds, rank_rows
from sparing.experiments.subprocess import SignalRelay, relay_signals
from sparing.experiments.trial import Trial, TrialRecord, origins
from sparing.experiments.variants import Variant
from sparing.models.cost import cost
from sparing.runs.build import build_model
from sparing.runs.check import check_run
from sparing.runs.config import RunConfig, for_vocab, to_json
from sparing.runs.folder import is_run, refuse_other_settings
from sparing.runs.layout import Layout
from sparing.runs.train import TrainOptions
from sparing.units import pluralize


@dataclass(frozen=True, kw_only=True, slots=True)
class ExperimentOptions:
    """Options of a call, as opposed to settings of the variants."""

    seeds: int = 1
    """Trials per variant."""
    tested: bool = False
    """Whether each trial is evaluated on the test split after training."""
    train: TrainOptions
    message: Callable[[str], None]
    """Prints a line for the user."""

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise UserError("an experiment needs at least one seed")


@dataclass(frozen=True, kw_only=True, slots=True)
class Supplement:
    """What one kind of experiment adds to the record that all kinds share."""

    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """More fields of a variant's row, by the variant's name."""
    notes: Sequence[str] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    """More fields of the record itself."""


class Experiment:
    """Variants times seeds in one folder: a run folder per trial, and the record of all of them.

    The record is the JSON file `path`; the same table as Markdown is written beside it.
    """

    def __init__(
        self, variants: Sequence[Variant], path: Path, layout: Layout, options: ExperimentOptions
    ) -> None:
        self.variants, self.path, self.layout, self.options = variants, path, layout, options
        self.supplement = Supplement()
        self.trials = [
            Trial(variant, seed, path.parent / f"{variant.folder}-seed{seed + 1}")
            for seed in range(options.seeds)
            for variant in variants
        ]
        self._refuse_other_contents()
        self.parameters = _check_variants(variants, options.train)
        self.record = TrialRecord()

    def run(self) -> tuple[int, dict[str, Any]]:
        """Run all missing trials, one after the other.

        Returns the signal that stopped it early (or 0) and the record. A trial that fails is
        noted, and the next one runs.
        """
        with files.lock_folder(self.path.parent), relay_signals() as relay:
            # Only now is it certain that no other process changes the folder.
            self._refuse_other_contents()
            self.record = TrialRecord.read(self.path)
            for trial in self.trials:
                if not self.record.finished(trial) and not relay.signal:
                    self._run_trial(trial, relay)
            return relay.signal, self.write()

    def finished_trials(self) -> list[Trial]:
        """The trials that are done."""
        return [trial for trial in self.trials if self.record.finished(trial)]

    def write(self) -> dict[str, Any]:
        """Write the record so far, as JSON and as a Markdown table; return it."""
        record = self.to_json()
        files.write_json(self.path, record)
        with files.atomic_write(self.path.with_suffix(".md")) as scratch:
            text = self.layout.markdown(record["rows"], record["notes"])
            scratch.write_text(text, encoding="utf-8")
        return record

    def to_json(self) -> dict[str, Any]:
        """The record: rows with the best first, notes, how each trial ended, and provenance."""
        base, about = self.variants[0].run, origins(self.trials)
        budget = f"{_budget(base)}, {pluralize(self.options.seeds, 'seed')}{_origin(about)}."
        return {
            **self.supplement.about,
            "rows": rank_rows([self._row(variant) for variant in self.variants]),
            "notes": [budget, *self.supplement.notes, *self._notes()],
            "trials": self.record.status,
            "run": to_json(base),
            "seed": base.train.seed,
            "started_at": self.record.started_at,
            **about,
        }

    def _row(self, variant: Variant) -> dict[str, Any]:
        trials = [trial for trial in self.trials if trial.variant is variant]
        summaries = [self.record.summary(trial) for trial in trials]
        return {
            "name": variant.name,
            "settings": list(variant.settings),
            "status": self.record.overall_status(trials),
            "parameters": self.parameters[variant.name],
            **self.supplement.facts.get(variant.name, {}),
            **average_seeds(summaries, tested=self.options.tested),
        }

    def _notes(self) -> list[str]:
        """What each name stands for, which trials failed, and what else is in the folder."""
        named = [(each.name, "; ".join(each.settings)) for each in self.variants if each.settings]
        failures = [(trial.title, self.record.failure(trial)) for trial in self.trials]
        others = sorted(set(self.record.status) - {trial.path.name for trial in self.trials})
        return [
            *(f"{name}: {settings}" for name, settings in named if name != settings),
            *(f"{title}, {failure}" for title, failure in failures if failure),
            *([f"Trials of other calls, not in the table: {', '.join(others)}."] if others else []),
        ]

    def _run_trial(self, trial: Trial, relay: SignalRelay) -> None:
        _refuse_locked(trial.path)
        # Before anything is trained: a kill must not leave a half-trained run marked as finished.
        self.record.forget(trial)
        self.write()
        if self.options.train.progress:
            self.options.message(trial.title)
        for arguments in self._commands(trial):
            command = [sys.executable, "-m", "sparing", *arguments]
            status, reason = relay.run(command, shown=self.options.train.progress)
            if status:
                break
        if status and relay.signal:
            # Stopped on request, which is not a failure.
            return
        self.record.note(trial, reason if status else None)
        if status:
            self.options.message(f"{trial.title}, failed: {reason}")
        self.write()

    def _commands(self, trial: Trial) -> list[list[str]]:
        """Arguments of the processes of a trial: train or resume, then test if that is wanted."""
        o, start = self.options.train, ["--resume"]
        common = ["--device", o.device, *([] if o.source is None else ["--from", str(o.source)])]
        if not is_run(trial.path):
            recipe = self.path.parent / "recipes" / f"{trial.path.name}.json"
            files.write_json(recipe, to_json(trial.run))
            start = [str(recipe)]
        quiet = [] if o.progress else ["--quiet"]
        train = ["train", *start, "--out", str(trial.path), *common, *quiet]
        test = ["evaluate", str(trial.path), "--split", "test", *common]
        return [train, test] if self.options.tested else [train]

    def _refuse_other_contents(self) -> None:
        out = self.path.parent
        if out.exists() and not out.is_dir():
            raise UserError(f"{out} is a file; --out names a folder")
        if is_run(out):
            raise UserError(f"{out} is a run; --out names a folder for several")
        for trial in self.trials:
            refuse_other_settings(trial.path, trial.run)


def _budget(base: RunConfig) -> str:
    units = {"minutes": base.train.minutes, "steps": base.train.steps, "epochs": base.train.epochs}
    budget = ", ".join(f"{value:g} {unit}" for unit, value in units.items() if value)
    return f"{base.recipe}, {budget} each"


def _origin(about: Mapping[str, Sequence[str]]) -> str:
    if not about["commits"]:
        return ""
    return f"; {', '.join(about['devices'])}; commit {', '.join(about['commits'])}"


def _refuse_locked(path: Path) -> None:
    """Another process that trains there would make ours fail, and then share the device."""
    if path.exists():
        with files.lock_folder(path):
            pass


def _check_variants(variants: Sequence[Variant], options: TrainOptions) -> dict[str, int]:
    """Refuse early whatever can be refused early; return the parameters of each variant."""
    tokens = prepare(variants[0].run.data, options.source, progress=options.progress)
    parameters: dict[str, int] = {}
    for variant in variants:
        try:
            device.pick(options.device, variant.run.train.precision)
            check_run(variant.run, tokens)
            model = build_model(for_vocab(variant.run, tokens.vocab.size), "meta")
        except UserError as problem:
            raise UserError(f"{variant.name}: {problem}") from None
        parameters[variant.name] = cost(model).parameters_deployed
    return parameters
