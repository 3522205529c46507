"""DDPWorld runs in one table."""

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sparing.data.corpora import CORPORA
from sparing.errors import UserError
from sparing.runs.folder import RunFolder, is_run
from sparing.runs.results import Figures, Score, mean, read_figures, spread

NOTHING = "-"
"""A cell for what is not known."""


def rounded(value: float | None, form: str, unit: float = 1) -> str:
    """A cell for a number counted in `unit`s."""
    return NOTHING if value is None else format(value / unit, form)


def markdown(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    notes: Sequence[str] = (),
    *,
    words: Collection[str] = (),
) -> str:
    """A table with notes under it; columns whose heads are among `words` begin at the left."""
    rule = ["---" if head in words else "---:" for head in heads]
    escaped = [[cell.replace("|", r"\|") for cell in row] for row in (heads, *rows)]
    lines = [f"| {' | '.join(cells)} |" for cells in [escaped[0], rule, *escaped[1:]]]
    return "\n".join([*lines, *(f"\n{note}" for note in notes)]) + "\n"


SEED = re.compile(r"(?:(?P<name>.*)-)?seed\d+")
"""Folders that differ in nothing but the seed are called so: NAME/seedN or NAME-seedN."""
INSIDE = ("checkpoints", "plots", "tensorboard")
"""Folders of a run that hold no runs."""


@dataclass(frozen=True, slots=True)
class Row:
    """One recipe: a run, or several that differ in their seeds."""

    name: str
    paths: tuple[str, ...]
    runs: tuple[Figures, ...]

    def to_json(self) -> dict[str, Any]:
        """Means over the seeds (of memory, the most); None for what no run of the row tells."""
        return {
            "run": self.name,
            "paths": list(self.paths),
            "recipe": self.runs[0].recipe,
            "corpus": self.runs[0].corpus,
            "seeds": [run.seed for run in self.runs],
            "parameters": self.runs[0].parameters,
            "bytes_read": self._mean("bytes_read"),
            "elapsed_s": self._mean("elapsed_s"),
            "bytes_per_s": self._mean("bytes_per_s"),
            "peak_bytes": max(filter(None, (run.peak_bytes for run in self.runs)), default=None),
            "valid": folded([run.valid for run in self.runs]),
            "test": folded([run.test for run in self.runs]),
            "device": ", ".join(dict.fromkeys(run.device for run in self.runs if run.device))
            or None,
        }

    def _mean(self, field: str) -> float | None:
        return mean([getattr(run, field) for run in self.runs])


def read_rows(folder: Path) -> tuple[list[Row], list[str]]:
    """A row per recipe below `folder`, by name, and a sentence about each run left out."""
    places = runs_below(folder)
    if not places:
        raise UserError(f"there is no run below {folder}; name a folder that holds runs")
    found: dict[Path, Figures] = {}
    problems = []
    for place in places:
        try:
            found[place.relative_to(folder)] = read_figures(_complete(place))
        except (UserError, OSError) as problem:
            problems.append(f"{place} is left out: {' '.join(str(problem).split())}")
    kept, copies = without_copies(found)
    problems += [f"{folder / path} is left out: {reason}" for path, reason in copies.items()]
    return fold(kept, folder), problems


def runs_below(folder: Path) -> list[Path]:
    """Every run folder in `folder`, itself included, and what looks like one."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; name one that holds runs")
    found = []
    for place, below, names in os.walk(folder):
        below[:] = sorted(name for name in below if name[0] != "." and name not in INSIDE)
        if {"config.json", "metrics.jsonl"} & set(names):
            found.append(Path(place))
    return found


def without_copies(
    found: Mapping[Path, Figures],
) -> tuple[dict[Path, Figures], dict[Path, str]]:
    """Runs of which each seed of a row is there once, and why the others do not count."""
    first: dict[tuple[Path, str, int], Path] = {}
    copies: dict[Path, str] = {}
    for path, figures in found.items():
        other = first.setdefault((*_row_of(path, figures), figures.seed), path)
        if other != path:
            copies[path] = f"it has the settings and the seed ({figures.seed}) of {other}"
    return {path: each for path, each in found.items() if path not in copies}, copies


def fold(found: Mapping[Path, Figures], folder: Path) -> list[Row]:
    """Seeds of one recipe, NAME/seedN or NAME-seedN, in one row; paths relative to `folder`."""
    groups: dict[tuple[Path, str], list[Path]] = {}
    for path, figures in found.items():
        groups.setdefault(_row_of(path, figures), []).append(path)
    homes = [home for home, _ in groups]
    rows = []
    for (home, _), paths in groups.items():
        apart = paths[0].parent / "+".join(path.name for path in paths)
        name = home if homes.count(home) == 1 else apart
        rows.append(
            Row(
                (Path(folder.resolve().name) if name == Path() else name).as_posix(),
                tuple(str(folder / path) for path in paths),
                tuple(found[path] for path in paths),
            )
        )
    return sorted(rows, key=lambda row: row.name)


def _row_of(path: Path, figures: Figures) -> tuple[Path, str]:
    """What runs of one row have in common: a place without the seed, and all settings but that."""
    seed = SEED.fullmatch(path.name)
    return (path.parent / (seed["name"] or ""), repr(figures.settings)) if seed else (path, "")


def folded(scores: Sequence[Score | None]) -> dict[str, Any] | None:
    """Mean and spread (half of worst less best) over those measured as the first one was."""
    known = [score for score in scores if score is not None]
    alike = [each for each in known if _measured(each) == _measured(known[0])]
    if not alike:
        return None
    bits = [each.bits_per_byte for each in alike]
    return {
        **asdict(alike[0]),
        "bits_per_byte": mean(bits),
        "step": mean([each.step for each in alike]),
        "spread": spread(bits),
        "by_seed": bits,
    }


COLUMNS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "run": lambda row: _named(row),
    "parameters": lambda row: f"{row['parameters'] / 1e6:.1f}M",
    "MB read": lambda row: rounded(row["bytes_read"], ",.1f", 1e6),
    "minutes": lambda row: rounded(row["elapsed_s"], ",.1f", 60),
    "kB/s": lambda row: rounded(row["bytes_per_s"], ",.0f", 1e3),
    "peak GiB": lambda row: rounded(row["peak_bytes"], ",.1f", 2**30),
    "valid": lambda row: _scored(row["valid"], len(row["seeds"])),
    "test": lambda row: _scored(row["test"], len(row["seeds"])),
    "test read as": lambda row: row["test"]["reading"] if row["test"] else NOTHING,
    "seeds": lambda row: str(len(row["seeds"])),
    "device": lambda row: row["device"] or NOTHING,
}
"""Heads of the table, and what stands below them."""
WORDS = ("run", "test read as", "device")
"""Columns of words, which begin at the left."""


def as_text(rows: Iterable[Row]) -> str:
    """Aligned columns."""
    lines = _cells(rows)
    widths = [max(len(line[at]) for line in lines) for at in range(len(COLUMNS))]
    aligned = [
        [
            cell.ljust(width) if head in WORDS else cell.rjust(width)
            for head, cell, width in zip(COLUMNS, line, widths, strict=True)
        ]
        for line in lines
    ]
    return "\n".join("  ".join(line).rstrip() for line in aligned)


def as_markdown(rows: Iterable[Row]) -> str:
    """A table for a document."""
    heads, *lines = _cells(rows)
    return markdown(heads, [[f"`{line[0]}`", *line[1:]] for line in lines], words=WORDS)


def _cells(rows: Iterable[Row]) -> list[list[str]]:
    told = [row.to_json() for row in rows]
    return [list(COLUMNS), *([cell(row) for cell in COLUMNS.values()] for row in told)]


def _named(row: Mapping[str, Any]) -> str:
    """The run's place, which says the recipe as a rule, and a text of the user's own."""
    remarks = [] if row["recipe"] in Path(row["run"]).parts else [row["recipe"]]
    remarks += [] if row["corpus"] in CORPORA else [f"on {Path(row['corpus']).name}"]
    return f"{row['run']} ({', '.join(remarks)})" if remarks else str(row["run"])


def _scored(told: Mapping[str, Any] | None, seeds: int) -> str:
    if told is None:
        return NOTHING
    count = len(told["by_seed"])
    around = f" ± {told['spread']:.4f}" if count > 1 else ""
    remarks = [f"{count} of {seeds} seeds"] if count < seeds else []
    if not told["whole"]:
        remarks += [f"first {told['bytes']:,} bytes"]
    protocol = told["reading"].partition(",")[0]
    remarks += [protocol] if protocol != "bytes" else []
    return f"{told['bits_per_byte']:.4f}{around}" + (f" ({', '.join(remarks)})" if remarks else "")


def _measured(score: Score) -> tuple[str, int, bool]:
    return score.reading, score.bytes, score.whole


def _complete(place: Path) -> RunFolder:
    if not is_run(place):
        raise UserError("it has a journal but no config.json")
    return RunFolder(place)
