"""The table of all runs below a folder."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sparing.data.corpora import CORPORA
from sparing.errors import UserError
from sparing.runs.folder import RunFolder, is_run
from sparing.runs.layout import NOTHING, Layout, format_number
from sparing.runs.results import RunSummary, SplitResult, half_range, mean, summarize

SEED = re.compile(r"(?:(?P<name>.*)-)?seed\d+")
"""Names of folders that differ in nothing but the seed: NAME/seedN or NAME-seedN."""
INSIDE = ("checkpoints", "plots", "tensorboard")
"""Subfolders of a run, which hold no runs."""


@dataclass(frozen=True, slots=True)
class Row:
    """A run, or several that differ only in their seeds."""

    name: str
    paths: tuple[str, ...]
    runs: tuple[RunSummary, ...]

    def to_json(self) -> dict[str, Any]:
        """Means over the seeds (for memory, the maximum); None for what no run records."""
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
            "valid": average_results([run.valid for run in self.runs]),
            "test": average_results([run.test for run in self.runs]),
            "device": ", ".join(dict.fromkeys(run.device for run in self.runs if run.device))
            or None,
        }

    def _mean(self, field: str) -> float | None:
        return mean([getattr(run, field) for run in self.runs])


def read_rows(folder: Path) -> tuple[list[Row], list[str]]:
    """A row per recipe below `folder`, sorted by name, and a sentence about each run left out."""
    places = runs_below(folder)
    if not places:
        raise UserError(f"there is no run below {folder}; name a folder that holds runs")
    found: dict[Path, RunSummary] = {}
    problems = []
    for place in places:
        try:
            found[place.relative_to(folder)] = summarize(_open_complete(place))
        except (UserError, OSError) as problem:
            problems.append(f"{place} is left out: {' '.join(str(problem).split())}")
    kept, copies = drop_copies(found)
    problems += [f"{folder / path} is left out: {reason}" for path, reason in copies.items()]
    return group_seeds(kept, folder), problems


def runs_below(folder: Path) -> list[Path]:
    """Every run folder in `folder`, itself included, and every folder with a journal."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; name one that holds runs")
    found = []
    for place, below, names in os.walk(folder):
        below[:] = sorted(name for name in below if name[0] != "." and name not in INSIDE)
        if {"config.json", "metrics.jsonl"} & set(names):
            found.append(Path(place))
    return found


def drop_copies(
    found: Mapping[Path, RunSummary],
) -> tuple[dict[Path, RunSummary], dict[Path, str]]:
    """The runs with each seed of a row only once, and why each of the others is left out."""
    first: dict[tuple[Path, str, int], Path] = {}
    copies: dict[Path, str] = {}
    for path, summary in found.items():
        other = first.setdefault((*_row_of(path, summary), summary.seed), path)
        if other != path:
            copies[path] = f"it has the settings and the seed ({summary.seed}) of {other}"
    return {path: each for path, each in found.items() if path not in copies}, copies


def group_seeds(found: Mapping[Path, RunSummary], folder: Path) -> list[Row]:
    """One row for the seeds of a recipe, NAME/seedN or NAME-seedN; paths relative to `folder`."""
    groups: dict[tuple[Path, str], list[Path]] = {}
    for path, summary in found.items():
        groups.setdefault(_row_of(path, summary), []).append(path)
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


def _row_of(path: Path, summary: RunSummary) -> tuple[Path, str]:
    """What the runs of one row share: a path without the seed, and all settings but the seed."""
    seed = SEED.fullmatch(path.name)
    return (path.parent / (seed["name"] or ""), repr(summary.settings)) if seed else (path, "")


def average_results(results: Sequence[SplitResult | None]) -> dict[str, Any] | None:
    """Mean and half range over the seeds that were measured in the same way as the first."""
    known = [result for result in results if result is not None]
    comparable = [each for each in known if _measured(each) == _measured(known[0])]
    if not comparable:
        return None
    bits = [each.bits_per_byte for each in comparable]
    return {
        **asdict(comparable[0]),
        "bits_per_byte": mean(bits),
        "step": mean([each.step for each in comparable]),
        "perplexity_per_token": mean([each.perplexity_per_token for each in comparable]),
        "half_range": half_range(bits),
        "by_seed": bits,
    }


def _named(row: Mapping[str, Any]) -> str:
    """Path of the run, with its recipe unless the path contains it, and a corpus of the user's."""
    remarks = [] if row["recipe"] in Path(row["run"]).parts else [row["recipe"]]
    remarks += [] if row["corpus"] in CORPORA else [f"on {Path(row['corpus']).name}"]
    return f"{row['run']} ({', '.join(remarks)})" if remarks else str(row["run"])


def _result_cell(result: Mapping[str, Any] | None, seeds: int) -> str:
    if result is None:
        return NOTHING
    count = len(result["by_seed"])
    around = f" ± {result['half_range']:.4f}" if count > 1 else ""
    remarks = [f"{count} of {seeds} seeds"] if count < seeds else []
    if not result["whole"]:
        remarks += [f"first {result['bytes']:,} bytes"]
    protocol = result["reading"].partition(",")[0]
    remarks += [protocol] if protocol != "bytes" else []
    suffix = f" ({', '.join(remarks)})" if remarks else ""
    return f"{result['bits_per_byte']:.4f}{around}{suffix}"


RESULTS = Layout(
    columns={
        "run": _named,
        "parameters": lambda row: f"{row['parameters'] / 1e6:.1f}M",
        "MB read": lambda row: format_number(row["bytes_read"], ",.1f", 1e6),
        "minutes": lambda row: format_number(row["elapsed_s"], ",.1f", 60),
        "kB/s": lambda row: format_number(row["bytes_per_s"], ",.0f", 1e3),
        "peak GiB": lambda row: format_number(row["peak_bytes"], ",.1f", 2**30),
        "valid": lambda row: _result_cell(row["valid"], len(row["seeds"])),
        "test": lambda row: _result_cell(row["test"], len(row["seeds"])),
        "test read as": lambda row: row["test"]["reading"] if row["test"] else NOTHING,
        "seeds": lambda row: str(len(row["seeds"])),
        "device": lambda row: row["device"] or NOTHING,
    },
    left=("run", "test read as", "device"),
    code=("run",),
)
"""The table of `sparing results`, for rows made by `Row.to_json`."""


def _measured(result: SplitResult) -> tuple[str, int, bool]:
    return result.reading, result.bytes, result.whole


def _open_complete(place: Path) -> RunFolder:
    if not is_run(place):
        raise UserError("it has a journal but no config.json")
    return RunFolder(place)
