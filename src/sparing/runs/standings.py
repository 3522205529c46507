"""Tables of several trainings side by side, best first."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from sparing.runs.folder import open_run
from sparing.train import journal

HEADS = (
    "contestant", "valid bits/byte", "± seeds", "to recipe", "steps", "MB read", "kB/s",
    "peak GiB", "minutes", "parameters",
)  # fmt: skip
FIGURES = ("valid", "steps", "read_bytes", "bytes_per_s", "peak_bytes", "elapsed_s")


def spread(values: Sequence[float]) -> float:
    """Half of worst less best."""
    return (max(values) - min(values)) / 2


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str] = ()) -> str:
    """A table for people, with notes under it."""
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(cells) + " |" for cells in rows]
    return "\n".join([*lines, *(f"\n{note}" for note in notes)]) + "\n"


def figures(path: Path, bytes_per_token: float) -> dict[str, float]:
    """What a finished run's journal says of its quality and its speed.

    The speed is that of the median entry, which leaves out compilation.
    """
    folder = open_run(path)
    entries = journal.read(folder.metrics)
    valid = [entry for entry in entries if entry["kind"] == "valid"][-1]
    logged = [entry for entry in entries if entry["kind"] == "train"]
    whole = folder.read("results")["training"]
    speeds = [entry["tokens_per_s"] for entry in logged] or [whole["tokens_per_s"]]
    return {
        "valid": valid["bits_per_byte"],
        "steps": valid["step"],
        "read_bytes": bytes_per_token * valid["tokens"],
        "bytes_per_s": bytes_per_token * median(speeds),
        "peak_bytes": max([whole["peak_bytes"], *(entry["peak_bytes"] for entry in logged)]),
        "elapsed_s": valid["elapsed_s"],
    }


def averaged(found: Sequence[Mapping[str, float] | None]) -> dict[str, Any]:
    """The figures of a contestant from those of its seeds; none while one is missing."""
    by_seed = [None if each is None else each["valid"] for each in found]
    there = [each for each in found if each is not None]
    if len(there) < len(found):
        return {**dict.fromkeys(FIGURES), "valid_spread": None, "valid_by_seed": by_seed}
    means: dict[str, Any] = {name: fmean(each[name] for each in there) for name in FIGURES}
    means["peak_bytes"] = max(each["peak_bytes"] for each in there)
    valid = [each["valid"] for each in there]
    return {**means, "valid_spread": spread(valid), "valid_by_seed": valid}


def ranked(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with their difference to the first, best first, those without a figure last."""
    start = rows[0]["valid"]
    for row in rows:
        known = row["valid"] is not None and start is not None
        row["difference"] = row["valid"] - start if known else None
    return sorted(rows, key=lambda row: (row["valid"] is None, row["valid"]))


def table(rows: Sequence[Mapping[str, Any]], notes: Sequence[str] = ()) -> str:
    """A comparison for people."""
    return markdown(HEADS, [_cells(row) for row in rows], notes)


def _cells(row: Mapping[str, Any]) -> list[str]:
    name, size = row["name"].replace("|", r"\|"), f"{row['parameters'] / 1e6:.2f}M"
    if row["valid"] is None:
        return [name, row["status"], *["-"] * (len(HEADS) - 3), size]
    compared = row["settings"] and row["difference"] is not None
    return [
        name,
        f"{row['valid']:.4f}",
        f"{row['valid_spread']:.4f}" if len(row["valid_by_seed"]) > 1 else "-",
        f"{row['difference']:+.4f}" if compared else "-",
        f"{row['steps']:,.0f}",
        f"{row['read_bytes'] / 1e6:,.2f}",
        f"{row['bytes_per_s'] / 1e3:,.1f}",
        f"{row['peak_bytes'] / 2**30:.2f}",
        f"{row['elapsed_s'] / 60:.2f}",
        size,
    ]
