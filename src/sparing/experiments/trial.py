"""Trials: one training of one variant each, and the record of how each of them ended."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, TypedDict

from sparing.documents import read_document
from sparing.errors import UserError
from sparing.experiments.variants import Variant
from sparing.runs.config import RunConfig
from sparing.runs.folder import RunFolder, is_run
from sparing.runs.provenance import now
from sparing.runs.results import RunSummary, summarize

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
        return self.variant.with_seed(self.seed)

    @property
    def title(self) -> str:
        """Its name in messages."""
        return f"{self.variant.name}, seed {self.seed + 1}"


class StoredExperiment(TypedDict):
    """The fields of an experiment's JSON file that are read again."""

    trials: dict[str, str]
    started_at: str


@dataclass(slots=True)
class TrialRecord:
    """What an experiment remembers between calls: how each trial ended."""

    status: dict[str, str] = field(default_factory=dict)
    """`finished`, or `failed: ` and the reason, by the name of a trial's folder."""
    started_at: str = field(default_factory=now)
    """Start of the first call."""
    _summaries: dict[str, RunSummary] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Self:
        """The record in an experiment's JSON file; a new one if there is no such file."""
        if not path.exists():
            return cls()
        try:
            stored = read_document(path, StoredExperiment)
        except UserError as problem:
            raise UserError(f"{problem}; change --out, or remove it") from None
        return cls(stored["trials"], stored["started_at"])

    def forget(self, trial: Trial) -> None:
        """Drop what is known about a trial, before it is trained again."""
        self.status.pop(trial.path.name, None)
        self._summaries.pop(trial.path.name, None)

    def note(self, trial: Trial, failure: str | None = None) -> None:
        """Record that a trial has finished, or why it failed."""
        self.status[trial.path.name] = FINISHED if failure is None else f"{FAILED}: {failure}"

    def finished(self, trial: Trial) -> bool:
        """Whether a trial is done; a failed one is not, and will be repeated."""
        return self.status.get(trial.path.name) == FINISHED and is_run(trial.path)

    def failure(self, trial: Trial) -> str:
        """`failed: ` and the reason; empty if the trial has not failed."""
        status = self.status.get(trial.path.name, "")
        return status if status.startswith(FAILED) else ""

    def overall_status(self, trials: Sequence[Trial]) -> str:
        """Status of a variant with these trials."""
        if all(self.finished(trial) for trial in trials):
            return FINISHED
        return FAILED if any(self.failure(trial) for trial in trials) else UNFINISHED

    def summary(self, trial: Trial) -> RunSummary | None:
        """Summary of a finished trial, read only once."""
        if not self.finished(trial):
            return None
        name = trial.path.name
        if name not in self._summaries:
            self._summaries[name] = _summarize(trial.path)
        return self._summaries[name]


def origins(trials: Iterable[Trial]) -> dict[str, list[str]]:
    """The commits and devices of all processes that trained these, each once."""
    started = [RunFolder(trial.path) for trial in trials if is_run(trial.path)]
    found = [start for folder in started for start in folder.starts()]
    return {
        "commits": list(dict.fromkeys(str(each.get("commit") or "unknown") for each in found)),
        "devices": list(dict.fromkeys(str(each.get("device") or "unknown") for each in found)),
    }


def _summarize(path: Path) -> RunSummary:
    found = summarize(RunFolder(path))
    if found.last_validation is None:
        raise UserError(f"{path} has finished, but has no valid entry; remove it to train it again")
    return found
