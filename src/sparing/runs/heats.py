"""Heats: the trainings of a comparison, how each ended, and what it found."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from sparing import files
from sparing.errors import UserError
from sparing.runs.config import RunConfig
from sparing.runs.figures import Figures, read_figures
from sparing.runs.folder import RunFolder, is_run
from sparing.runs.provenance import now
from sparing.runs.tries import Contestant

FINISHED, FAILED, UNFINISHED = "finished", "failed", "unfinished"


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


@dataclass(slots=True)
class Record:
    """What a comparison remembers from call to call."""

    ended: dict[str, str] = field(default_factory=dict)
    """`finished`, or `failed: ` and why, by the name of a heat's folder."""
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

    def forget(self, heat: Heat) -> None:
        """A training under this name begins anew."""
        self.ended.pop(heat.path.name, None)
        self._figures.pop(heat.path.name, None)

    def finished(self, heat: Heat) -> bool:
        """Whether a training is done; a failed one is tried again."""
        return self.ended.get(heat.path.name) == FINISHED and is_run(heat.path)

    def failure(self, heat: Heat) -> str:
        """Why a training failed; empty where it did not."""
        ended = self.ended.get(heat.path.name, "")
        return ended if ended.startswith(FAILED) else ""

    def status(self, heats: Sequence[Heat]) -> str:
        """Of a contestant with these trainings."""
        if all(self.finished(heat) for heat in heats):
            return FINISHED
        return FAILED if any(self.failure(heat) for heat in heats) else UNFINISHED

    def figures(self, heat: Heat) -> Figures | None:
        """Those of a finished training, read once."""
        if not self.finished(heat):
            return None
        name = heat.path.name
        if name not in self._figures:
            self._figures[name] = _figures(heat.path)
        return self._figures[name]


def origins(heats: Iterable[Heat]) -> dict[str, list[str]]:
    """The commits and devices of all processes that trained these, each once."""
    found = [each for heat in heats for each in _provenances(heat.path)]
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
