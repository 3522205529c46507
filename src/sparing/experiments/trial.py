"""Heats: the trainings of a comparison, how each ended, and what it found."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from sparing import files
from sparing.errors import UserError
from sparing.experiments.variants import Variant
from sparing.runs.config import RunConfig
from sparing.runs.folder import RunFolder, is_run
from sparing.runs.provenance import now
from sparing.runs.results import Figures, read_figures

FINISHED, FAILED, UNFINISHED = "finished", "failed", "unfinished"


@dataclass(frozen=True, slots=True)
class Trial:
    """One training of one variant."""

    variant: Variant
    seed: int
    """Counted from 0."""
    path: Path

    @property
    def run(self) -> RunConfig:
        """Its complete settings."""
        return self.variant.seeded(self.seed)

    @property
    def title(self) -> str:
        """How people are told of it."""
        return f"{self.variant.name}, seed {self.seed + 1}"


@dataclass(slots=True)
class Record:
    """What a comparison remembers from call to call."""

    ended: dict[str, str] = field(default_factory=dict)
    """`finished`, or `failed: ` and why, by the name of a trial's folder."""
    started_at: str = field(default_factory=now)
    """Of the first call."""
    _figures: dict[str, Figures] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Self:
        """That of a `compare.json`; a new one where there is none."""
        if not path.exists():
            return cls()
        stored = files.read_object(path)
        known, started_at = stored.get("runs"), stored.get("started_at")
        if not isinstance(known, dict) or not isinstance(started_at, str):
            raise UserError(f"{path} is of no comparison of ours; change --out, or remove it")
        return cls({str(name): str(ended) for name, ended in known.items()}, started_at)

    def forget(self, trial: Trial) -> None:
        """A training under this name begins anew."""
        self.ended.pop(trial.path.name, None)
        self._figures.pop(trial.path.name, None)

    def finished(self, trial: Trial) -> bool:
        """Whether a training is done; a failed one is tried again."""
        return self.ended.get(trial.path.name) == FINISHED and is_run(trial.path)

    def failure(self, trial: Trial) -> str:
        """Why a training failed; empty where it did not."""
        ended = self.ended.get(trial.path.name, "")
        return ended if ended.startswith(FAILED) else ""

    def status(self, trials: Sequence[Trial]) -> str:
        """Of a variant with these trainings."""
        if all(self.finished(trial) for trial in trials):
            return FINISHED
        return FAILED if any(self.failure(trial) for trial in trials) else UNFINISHED

    def figures(self, trial: Trial) -> Figures | None:
        """Those of a finished training, read once."""
        if not self.finished(trial):
            return None
        name = trial.path.name
        if name not in self._figures:
            self._figures[name] = _figures(trial.path)
        return self._figures[name]


def origins(trials: Iterable[Trial]) -> dict[str, list[str]]:
    """The commits and devices of all processes that trained these, each once."""
    found = [each for trial in trials for each in _provenances(trial.path)]
    return {
        "commits": list(dict.fromkeys(str(each.get("commit") or "unknown") for each in found)),
        "devices": list(dict.fromkeys(str(each.get("device") or "unknown") for each in found)),
    }


def _provenances(path: Path) -> list[dict[str, Any]]:
    if not (path / "provenance.json").exists():
        return []
    first = RunFolder(path).read("provenance")
    resumed = first.get("resumed")
    later = resumed if isinstance(resumed, list) else []
    return [first, *(each for each in later if isinstance(each, dict))]


def _figures(path: Path) -> Figures:
    found = read_figures(RunFolder(path))
    if found.judged is None:
        raise UserError(f"{path} has finished, but has no valid entry; remove it to train it again")
    return found
