"""Comparisons: the same recipe with other settings, each trained by a process of its own."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparing import device, files
from sparing.data.tokens import prepare
from sparing.errors import UserError
from sparing.experiments.leaderboard import averaged, ranked, table
from sparing.experiments.subprocess import Relay, relaying
from sparing.experiments.trial import FAILED, FINISHED, Record, Trial, origins
from sparing.experiments.variants import Variant
from sparing.models.cost import cost
from sparing.runs.build import build_model
from sparing.runs.config import RunConfig, for_vocab, to_json
from sparing.runs.folder import is_run, refuse_another
from sparing.runs.train import TrainOptions, check_run
from sparing.units import counted


@dataclass(frozen=True, kw_only=True, slots=True)
class CompareOptions:
    """What belongs to this call rather than to the variants."""

    seeds: int = 1
    """Trainings of every variant."""
    train: TrainOptions
    tell: Callable[[str], None]
    """Says a line to whoever is watching."""

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise UserError("a comparison needs at least one seed")


class Comparison:
    """Who is compared, and how far they are: what compare.json holds."""

    def __init__(self, standing: Sequence[Variant], out: Path, options: CompareOptions) -> None:
        self.standing, self.out, self.options = standing, out, options
        self.trials = [
            Trial(one, seed, out / f"{one.folder}-seed{seed + 1}")
            for seed in range(options.seeds)
            for one in standing
        ]
        _refuse_another(out, self.trials)
        self.sizes = _checked(standing, options.train)
        self.record = Record()

    def recall(self) -> None:
        """Take up what earlier calls left, once no other can change it."""
        _refuse_another(self.out, self.trials)
        self.record = Record.read(self.out / "compare.json")

    def finished(self) -> list[Trial]:
        """Trainings that are done."""
        return [trial for trial in self.trials if self.record.finished(trial)]

    def missing(self) -> list[Trial]:
        """Trainings that are still to be done."""
        return [trial for trial in self.trials if not self.record.finished(trial)]

    def begin(self, trial: Trial) -> None:
        """Forget how an earlier training under this name ended, before a folder takes its place."""
        self.record.forget(trial)
        self.write()

    def note(self, trial: Trial, status: int, reason: str) -> None:
        """Write down how a training ended."""
        self.record.ended[trial.path.name] = f"{FAILED}: {reason}" if status else FINISHED
        if status:
            self.options.tell(f"{trial.title}, failed: {reason}")
        self.write()

    def write(self) -> dict[str, Any]:
        """`compare.json` and `compare.md`, as things stand."""
        told = self.to_json()
        files.write_json(self.out / "compare.json", told)
        with files.writing(self.out / "compare.md") as scratch:
            scratch.write_text(table(told["rows"], told["notes"]), encoding="utf-8")
        return told

    def to_json(self) -> dict[str, Any]:
        """Rows best first, and where they come from."""
        base, about = self.standing[0].run, origins(self.trials)
        first = f"{_offer(base)}, {counted(self.options.seeds, 'seed')}{_origin(about)}."
        return {
            "rows": rows(self.trials, self.record, self.sizes),
            "notes": [first, *notes(self.trials, self.record)],
            "runs": self.record.ended,
            "run": to_json(base),
            "seed": base.train.seed,
            "started_at": self.record.started_at,
            **about,
        }


def compare(comparison: Comparison) -> tuple[int, dict[str, Any]]:
    """Train whoever is missing, one after the other; the signal that ended it (or 0), a record."""
    with files.locked(comparison.out), relaying() as relay:
        comparison.recall()
        for trial in comparison.missing():
            _refuse_taken(trial.path)
            comparison.begin(trial)
            status, reason = _trained(trial, relay, comparison.options)
            # One that was told to stop has not failed.
            if not (relay.signal and status):
                comparison.note(trial, status, reason)
            if relay.signal:
                break
        return relay.signal, comparison.write()


def rows(trials: Sequence[Trial], record: Record, sizes: Mapping[str, int]) -> list[dict[str, Any]]:
    """A row per variant, best first; `sizes` are parameters by name."""
    by_name: dict[str, list[Trial]] = {}
    for trial in trials:
        by_name.setdefault(trial.variant.name, []).append(trial)
    found = [
        {
            "name": name,
            "settings": list(own[0].variant.settings),
            "status": record.status(own),
            "parameters": sizes[name],
            **averaged([record.figures(trial) for trial in own]),
        }
        for name, own in by_name.items()
    ]
    return ranked(found)


def notes(trials: Sequence[Trial], record: Record) -> list[str]:
    """What names stand for, what failed, and what the folder holds besides."""
    one_each = [trial.variant for trial in trials if trial.seed == 0]
    named = [one for one in one_each if one.settings and one.name != "; ".join(one.settings)]
    failed = [
        f"{trial.title}, {record.failure(trial)}" for trial in trials if record.failure(trial)
    ]
    others = sorted(set(record.ended) - {trial.path.name for trial in trials})
    return [
        *(f"{one.name}: {'; '.join(one.settings)}" for one in named),
        *failed,
        *(
            [f"Not asked for this time, so not in the table: {', '.join(others)}."]
            if others
            else []
        ),
    ]


def _offer(base: RunConfig) -> str:
    units = {"minutes": base.train.minutes, "steps": base.train.steps, "epochs": base.train.epochs}
    budget = ", ".join(f"{value:g} {unit}" for unit, value in units.items() if value)
    return f"{base.recipe}, {budget} each"


def _origin(about: Mapping[str, Sequence[str]]) -> str:
    if not about["commits"]:
        return ""
    return f"; {', '.join(about['devices'])}; commit {', '.join(about['commits'])}"


def _refuse_another(out: Path, trials: Sequence[Trial]) -> None:
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; --out names a folder")
    if is_run(out):
        raise UserError(f"{out} is a run; --out names a folder for several")
    for trial in trials:
        refuse_another(trial.path, trial.run, "comparison")


def _refuse_taken(path: Path) -> None:
    """Somebody who trains there would make ours fail, and share the device with the next one."""
    if path.exists():
        with files.locked(path):
            pass


def _checked(standing: Sequence[Variant], options: TrainOptions) -> dict[str, int]:
    """Each variant's parameters, once everything that can be refused early has been."""
    tokens = prepare(standing[0].run.data, options.source, progress=options.progress)
    found: dict[str, int] = {}
    for one in standing:
        try:
            device.pick(options.device, one.run.train.precision)
            check_run(one.run, tokens)
            model = build_model(for_vocab(one.run, tokens.vocab.size), "meta")
        except UserError as problem:
            raise UserError(f"{one.name}: {problem}") from None
        found[one.name] = cost(model).parameters_deployed
    return found


def _trained(trial: Trial, relay: Relay, options: CompareOptions) -> tuple[int, str]:
    """Start a training in a process of its own, or go on with it where it was cut."""
    o, start = options.train, ["--resume"]
    if not is_run(trial.path):
        recipe = trial.path.parent / "recipes" / f"{trial.path.name}.json"
        files.write_json(recipe, to_json(trial.run))
        start = [str(recipe)]
    words = [*start, "--out", str(trial.path), "--device", o.device]
    words += [] if o.source is None else ["--from", str(o.source)]
    words += [] if o.progress else ["--quiet"]
    if o.progress:
        options.tell(trial.title)
    return relay.run([sys.executable, "-m", "sparing", "train", *words], shown=o.progress)
