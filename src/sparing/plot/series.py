"""Curves and events read from the journals of runs. Imports neither torch nor matplotlib."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sparing import units
from sparing.errors import UserError
from sparing.files import read_json
from sparing.runs.records import read_provenance
from sparing.training.journal import read

XAxis = Literal["steps", "bytes", "minutes"]
SEED = re.compile(r"seed\d+")


@dataclass(frozen=True, slots=True)
class RunJournal:
    """The journal of one run, and how the picture names that run."""

    name: str
    """Short, and unique in the picture."""
    origin: str
    """Folder, commit and device, for the footer."""
    entries: list[dict[str, Any]]
    group: str = ""
    """Runs of one group share a colour."""
    corpus: str = ""
    """What the run was trained on; empty if the folder does not say."""


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one curve; NaN where the journal has no finite number."""

    x: list[float]
    y: list[float]


@dataclass(frozen=True, slots=True)
class Event:
    """An event in the journal."""

    x: float
    step: int
    what: str


def read_journals(runs: Sequence[Path], groups: Sequence[str] | None = None) -> list[RunJournal]:
    """The journals of run folders, in the order given; by default each is a group of its own."""
    if not runs:
        raise UserError("name at least one run to draw")
    names = short_names(runs)
    return [
        RunJournal(name, origin(run), _entries(run / "metrics.jsonl"), shared, _corpus(run))
        for name, run, shared in zip(names, runs, groups or names, strict=True)
    ]


def short_names(runs: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that distinguish the runs; a seed keeps its recipe's name."""
    parts = [run.resolve().parts for run in runs]
    if len(set(parts)) < len(parts):
        twice = next(run for at, run in enumerate(runs) if parts[at] in parts[:at])
        raise UserError(f"run {twice} is named twice; leave one out")
    # The last part of NAME/seedN alone does not name a run.
    least = 2 if any(SEED.fullmatch(each[-1]) for each in parts) else 1
    for length in range(least, max(least, *map(len, parts)) + 1):
        names = [str(Path(*each[-length:])) for each in parts]
        if len(set(names)) == len(names):
            break
    return names


def origin(run: Path) -> str:
    """Where a run's numbers come from, in one line."""
    known = read_provenance(run)
    words = [str(run), f"commit {known.get('commit') or 'unknown'}"]
    return " · ".join([*words, str(known["device"])] if known.get("device") else words)


def _corpus(run: Path) -> str:
    data = _object(run / "config.json").get("data")
    corpus = data.get("corpus") if isinstance(data, dict) else None
    return str(corpus or "")


def _object(path: Path) -> dict[str, Any]:
    """What a JSON file says; empty if there is none, as in a part of a run folder."""
    found = read_json(path) if path.is_file() else {}
    return found if isinstance(found, dict) else {}


def series(journal: RunJournal, kind: str, field: str, axis: XAxis) -> Series:
    """One number of the `train` or `valid` entries against steps, bytes or minutes."""
    place = step_to_x(journal, axis)
    chosen = [entry for entry in journal.entries if entry["kind"] == kind and field in entry]
    return Series(
        [place(entry["step"]) for entry in chosen],
        [finite_or_nan(entry[field]) for entry in chosen],
    )


def events(journal: RunJournal, axis: XAxis) -> list[Event]:
    """Events of the run, such as skipped steps."""
    place = step_to_x(journal, axis)
    return [
        Event(place(entry["step"]), entry["step"], str(entry.get("what", "event")))
        for entry in journal.entries
        if entry["kind"] == "event"
    ]


def step_to_x(journal: RunJournal, axis: XAxis) -> Callable[[int], float]:
    """A function from a step to its place on the axis, interpolated between journal entries."""
    if axis == "steps":
        return float
    field = "tokens" if axis == "bytes" else "elapsed_s"
    scale = bytes_per_token(journal) if axis == "bytes" else 1 / 60
    found = {entry["step"]: scale * finite_or_nan(entry.get(field)) for entry in _measured(journal)}
    known = sorted((step, value) for step, value in found.items() if math.isfinite(value))
    if not known:
        raise UserError(f"the journal of run {journal.name} does not record {axis}; use --x steps")
    steps: list[int] = [0, *(step for step, _ in known)]
    values = [0.0, *(value for _, value in known)]

    def place(step: int) -> float:
        if step > steps[-1] > 0:
            return values[-1] * step / steps[-1]
        return float(np.interp(step, steps, values))

    return place


def bytes_per_token(journal: RunJournal) -> float:
    """Mean bytes per token: the ratio of the loss per token and per byte; NaN if none is finite."""
    for entry in _measured(journal):
        nats, bits = (
            finite_or_nan(entry.get("nats_per_token")),
            finite_or_nan(entry.get("bits_per_byte")),
        )
        if nats > 0 and bits > 0:
            return units.bits_per_byte(nats, 1) / bits
    return math.nan


def _measured(journal: RunJournal) -> list[dict[str, Any]]:
    """`train` entries, then `valid` ones: the axis counts the training text."""
    return [
        entry for kind in ("train", "valid") for entry in journal.entries if entry["kind"] == kind
    ]


def finite_or_nan(value: Any) -> float:
    """`value` as a float; NaN if it is not a finite number."""
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    return math.nan


def _entries(path: Path) -> list[dict[str, Any]]:
    entries = read(path)
    if not entries:
        raise UserError(
            f"{path} {'is empty' if path.exists() else 'is missing'}; train the run first"
        )
    return entries
