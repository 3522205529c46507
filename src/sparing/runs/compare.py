"""Comparisons: the same recipe with other settings, each trained by a process of its own."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparing import device, files
from sparing.data.tokens import Tokens, prepare
from sparing.errors import UserError
from sparing.models.cost import cost
from sparing.runs.build import build_model
from sparing.runs.child import Relay, relaying
from sparing.runs.config import RunConfig, for_vocab, to_json
from sparing.runs.folder import is_run, refuse_another
from sparing.runs.provenance import provenance
from sparing.runs.standings import averaged, figures, ranked, table
from sparing.runs.train import TrainOptions, rehearse
from sparing.runs.tries import Contestant
from sparing.units import counted

FINISHED, FAILED, UNFINISHED = "finished", "failed", "unfinished"


@dataclass(frozen=True, kw_only=True, slots=True)
class CompareOptions:
    """What belongs to this call rather than to the contestants."""

    seeds: int = 1
    """Trainings of every contestant."""
    train: TrainOptions
    tell: Callable[[str], None]
    """Says a line to whoever is watching."""

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise UserError("a comparison needs at least one seed")


@dataclass(frozen=True, slots=True)
class Heat:
    """One training of one contestant."""

    contestant: Contestant
    seed: int
    """Counted from 0."""
    path: Path

    @property
    def run(self) -> RunConfig:
        """Its complete settings."""
        return self.contestant.seeded(self.seed)

    @property
    def title(self) -> str:
        """How people are told of it."""
        return f"{self.contestant.name}, seed {self.seed + 1}"


class Comparison:
    """Who is compared, and how far they are: what compare.json holds."""

    def __init__(self, standing: Sequence[Contestant], out: Path, options: CompareOptions) -> None:
        self.standing, self.out, self.options = standing, out, options
        self.heats = [
            Heat(one, seed, out / f"{one.folder}-seed{seed + 1}")
            for seed in range(options.seeds)
            for one in standing
        ]
        self._refuse_another()
        self.tokens = _checked(standing, options.train)
        self.ended = self._before()

    def finished(self, heat: Heat) -> bool:
        """Whether a training is done; a failed one is tried again."""
        return self.ended.get(heat.path.name) == FINISHED and is_run(heat.path)

    def runs(self) -> list[Path]:
        """The folders of finished trainings."""
        return [heat.path for heat in self.heats if self.finished(heat)]

    def missing(self) -> list[Heat]:
        """Trainings that are still to be done."""
        return [heat for heat in self.heats if not self.finished(heat)]

    def begin(self, heat: Heat) -> None:
        """Forget how an earlier training under this name ended, before a folder takes its place."""
        self.ended.pop(heat.path.name, None)
        self.write()

    def note(self, heat: Heat, status: int, reason: str) -> None:
        """Write down how a training ended."""
        self.ended[heat.path.name] = f"{FAILED}: {reason}" if status else FINISHED
        if status:
            self.options.tell(f"{heat.title}, failed: {reason}")
        self.write()

    def write(self) -> dict[str, Any]:
        """`compare.json` and `compare.md`, as things stand."""
        record = self.record()
        files.write_json(self.out / "compare.json", record)
        with files.writing(self.out / "compare.md") as scratch:
            scratch.write_text(table(record["rows"], record["notes"]), encoding="utf-8")
        return record

    def record(self) -> dict[str, Any]:
        """Rows best first, and where they come from."""
        base = self.standing[0].run
        hardware = device.pick(self.options.train.device, base.train.precision)
        about = provenance(hardware, base.train.seed)
        return {
            "rows": ranked([self._row(one) for one in self.standing]),
            "notes": self._notes(about),
            "runs": self.ended,
            "run": to_json(base),
            **about,
        }

    def _row(self, one: Contestant) -> dict[str, Any]:
        tokens = self.tokens[one.name]
        split = tokens.split("train")
        heats = [heat for heat in self.heats if heat.contestant == one]
        found = [
            figures(heat.path, split.size_bytes / len(split.ids)) if self.finished(heat) else None
            for heat in heats
        ]
        model = build_model(for_vocab(one.run, tokens.vocab.size), "meta")
        return {
            "name": one.name,
            "settings": list(one.settings),
            "status": self._status(heats),
            "parameters": cost(model).parameters_training,
            **averaged(found),
        }

    def _status(self, heats: Sequence[Heat]) -> str:
        if all(self.finished(heat) for heat in heats):
            return FINISHED
        return FAILED if any(self._failure(heat) for heat in heats) else UNFINISHED

    def _failure(self, heat: Heat) -> str:
        ended = self.ended.get(heat.path.name, "")
        return ended if ended.startswith(FAILED) else ""

    def _notes(self, about: Mapping[str, Any]) -> list[str]:
        base = self.standing[0].run
        units = {"minutes": base.train.minutes, "steps": base.train.steps}
        units["epochs"] = base.train.epochs
        budget = ", ".join(f"{value:g} {unit}" for unit, value in units.items() if value)
        seeds = counted(self.options.seeds, "seed")
        origin = f"{about['device']}, commit {about['commit'] or 'unknown'}"
        named = [one for one in self.standing[1:] if one.name != "; ".join(one.settings)]
        return [
            f"{base.recipe}, {budget} each, {seeds}; {origin}.",
            *(f"{one.name}: {'; '.join(one.settings)}" for one in named),
            *(
                f"{heat.title}, {failure}"
                for heat in self.heats
                if (failure := self._failure(heat))
            ),
        ]

    def _refuse_another(self) -> None:
        if self.out.exists() and not self.out.is_dir():
            raise UserError(f"{self.out} is a file; --out names a folder")
        if is_run(self.out):
            raise UserError(f"{self.out} is a run; --out names a folder for several")
        for heat in self.heats:
            refuse_another(heat.path, heat.run, "comparison")

    def _before(self) -> dict[str, str]:
        path = self.out / "compare.json"
        known = files.read_object(path).get("runs") if path.exists() else {}
        if not isinstance(known, dict):
            raise UserError(f"{path} is of no comparison of ours; change --out, or remove it")
        return {str(name): str(ended) for name, ended in known.items()}


def compare(comparison: Comparison) -> tuple[int, dict[str, Any]]:
    """Train whoever is missing, one after the other; the signal that ended it (or 0), a record."""
    with files.locked(comparison.out), relaying() as relay:
        for heat in comparison.missing():
            comparison.begin(heat)
            status, reason = _trained(heat, relay, comparison.options)
            # One that was told to stop has not failed.
            if not (relay.signal and status):
                comparison.note(heat, status, reason)
            if relay.signal:
                break
        return relay.signal, comparison.write()


def _checked(standing: Sequence[Contestant], options: TrainOptions) -> dict[str, Tokens]:
    """Each contestant's text, once everything that can be refused early has been."""
    found: dict[str, Tokens] = {}
    for one in standing:
        device.pick(options.device, one.run.train.precision)
        try:
            tokens = prepare(one.run.data, options.source, progress=options.progress)
            rehearse(one.run, tokens)
        except UserError as problem:
            raise UserError(f"{one.name}: {problem}") from None
        found[one.name] = tokens
    return found


def _trained(heat: Heat, relay: Relay, options: CompareOptions) -> tuple[int, str]:
    """Start a training in a process of its own, or go on with it where it was cut."""
    o, start = options.train, ["--resume"]
    if not is_run(heat.path):
        recipe = heat.path.parent / "recipes" / f"{heat.path.name}.json"
        files.write_json(recipe, to_json(heat.run))
        start = [str(recipe)]
    words = [*start, "--out", str(heat.path), "--device", o.device]
    words += [] if o.source is None else ["--from", str(o.source)]
    words += [] if o.progress else ["--quiet"]
    if o.progress:
        options.tell(heat.title)
    return relay.run([sys.executable, "-m", "sparing", "train", *words], shown=o.progress)
