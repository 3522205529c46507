"""What a journal says, as numbers to draw. Knows neither torch nor matplotlib."""

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
from sparing.train import journal

XAxis = Literal["steps", "bytes", "minutes"]
SEED = re.compile(r"seed\d+")


@dataclass(frozen=True, slots=True)
class Diary:
    """One run's journal, and whose it is."""

    name: str
    """Short, and different from the other runs of the picture."""
    origin: str
    """Folder, commit and device, for the small print."""
    entries: list[dict[str, Any]]
    kin: str = ""
    """What several runs of the picture may share; they get one colour."""


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one curve; NaN where the journal has no finite number."""

    x: list[float]
    y: list[float]


@dataclass(frozen=True, slots=True)
class Event:
    """Something noted at one moment of the run."""

    x: float
    step: int
    what: str


def read_diaries(runs: Sequence[Path], kin: Sequence[str] | None = None) -> list[Diary]:
    """The journals of run folders, in the order given; by default none is kin to another."""
    if not runs:
        raise UserError("name at least one run to draw")
    names = short_names(runs)
    return [
        Diary(name, origin(run), _entries(run / "metrics.jsonl"), shared)
        for name, run, shared in zip(names, runs, kin or names, strict=True)
    ]


def short_names(runs: Sequence[Path]) -> list[str]:
    """The fewest last parts of each path that tell the runs apart, and of what they are seeds."""
    parts = [run.resolve().parts for run in runs]
    if len(set(parts)) < len(parts):
        twice = next(run for at, run in enumerate(runs) if parts[at] in parts[:at])
        raise UserError(f"run {twice} is named twice; leave one out")
    # NAME/seedN is how the seeds of a recipe are kept; its last part names no run.
    least = 2 if any(SEED.fullmatch(each[-1]) for each in parts) else 1
    for length in range(least, max(least, *map(len, parts)) + 1):
        names = [str(Path(*each[-length:])) for each in parts]
        if len(set(names)) == len(names):
            break
    return names


def origin(run: Path) -> str:
    """Where a run's numbers come from, in one line."""
    path = run / "provenance.json"
    known = read_json(path) if path.is_file() else {}
    if not isinstance(known, dict):
        known = {}
    words = [str(run), f"commit {known.get('commit') or 'unknown'}"]
    return " · ".join([*words, str(known["device"])] if known.get("device") else words)


def series(diary: Diary, kind: str, field: str, axis: XAxis) -> Series:
    """One number of the `train` or `valid` entries against steps, bytes or minutes."""
    place = placing(diary, axis)
    chosen = [entry for entry in diary.entries if entry["kind"] == kind and field in entry]
    return Series(
        [place(entry["step"]) for entry in chosen], [number(entry[field]) for entry in chosen]
    )


def events(diary: Diary, axis: XAxis) -> list[Event]:
    """What happened to the run, such as skipped steps."""
    place = placing(diary, axis)
    return [
        Event(place(entry["step"]), entry["step"], str(entry.get("what", "event")))
        for entry in diary.entries
        if entry["kind"] == "event"
    ]


def placing(diary: Diary, axis: XAxis) -> Callable[[int], float]:
    """From a step to its place on the axis; events, which know no other, lie between entries."""
    if axis == "steps":
        return float
    field = "tokens" if axis == "bytes" else "elapsed_s"
    scale = bytes_per_token(diary) if axis == "bytes" else 1 / 60
    found = {entry["step"]: scale * number(entry.get(field)) for entry in _measured(diary)}
    known = sorted((step, value) for step, value in found.items() if math.isfinite(value))
    if not known:
        raise UserError(f"the journal of run {diary.name} does not tell {axis}; use --x steps")
    steps: list[int] = [0, *(step for step, _ in known)]
    values = [0.0, *(value for _, value in known)]

    def place(step: int) -> float:
        if step > steps[-1] > 0:
            return values[-1] * step / steps[-1]
        return float(np.interp(step, steps, values))

    return place


def bytes_per_token(diary: Diary) -> float:
    """Mean bytes of a token, from its loss per either; NaN where no loss is finite."""
    for entry in _measured(diary):
        nats, bits = number(entry.get("nats_per_token")), number(entry.get("bits_per_byte"))
        if nats > 0 and bits > 0:
            return units.bits_per_byte(nats, 1) / bits
    return math.nan


def _measured(diary: Diary) -> list[dict[str, Any]]:
    """`train` entries, then `valid` ones: the training text is what the axis counts."""
    return [
        entry for kind in ("train", "valid") for entry in diary.entries if entry["kind"] == kind
    ]


def number(value: Any) -> float:
    """`value` as a float, NaN for what cannot be drawn."""
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    return math.nan


def _entries(path: Path) -> list[dict[str, Any]]:
    entries = journal.read_checked(path)
    if not entries:
        raise UserError(
            f"{path} {'is empty' if path.exists() else 'is missing'}; train the run first"
        )
    return entries
