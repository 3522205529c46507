"""Contestants of a comparison side by side, best first."""

from collections.abc import Mapping, Sequence
from typing import Any

from sparing.runs.results import Figures, mean, spread
from sparing.runs.table import NOTHING, markdown, rounded

HEADS = (
    "variant", "valid bits/byte", "± seeds", "to recipe", "steps", "MB read", "kB/s",
    "peak GiB", "minutes", "parameters",
)  # fmt: skip
MEANS = ("bytes_read", "bytes_per_s", "elapsed_s")


def averaged(found: Sequence[Figures | None]) -> dict[str, Any]:
    """The figures of a variant from those of its seeds; none while one is missing.

    Valid is what the training measured last: nobody's figure is of other bytes or other weights.
    """
    judged = [None if each is None else each.judged for each in found]
    by_seed = [None if each is None else each.bits_per_byte for each in judged]
    valid = [each for each in by_seed if each is not None]
    complete = len(valid) == len(found)
    known = [each for each in found if each is not None] if complete else []
    peaks = [each.peak_bytes for each in known if each.peak_bytes is not None]
    return {
        "valid": mean(valid) if complete else None,
        "valid_spread": spread(valid) if complete else None,
        "valid_by_seed": by_seed,
        "steps": mean([each.step for each in judged if each is not None]) if complete else None,
        **{name: mean([getattr(each, name) for each in known]) for name in MEANS},
        "peak_bytes": max(peaks, default=None),
    }


def ranked(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with their difference to the first, best first, those without a figure last."""
    start = rows[0]["valid"]
    for row in rows:
        known = row["valid"] is not None and start is not None
        row["difference"] = row["valid"] - start if known else None
    return sorted(rows, key=lambda row: (row["valid"] is None, row["valid"]))


def table(rows: Sequence[Mapping[str, Any]], notes: Sequence[str] = ()) -> str:
    """A comparison for people."""
    return markdown(HEADS, [_cells(row) for row in rows], notes, words=HEADS[:1])


def _cells(row: Mapping[str, Any]) -> list[str]:
    size = f"{row['parameters'] / 1e6:.2f}M"
    if row["valid"] is None:
        return [row["name"], row["status"], *[NOTHING] * (len(HEADS) - 3), size]
    return [
        row["name"],
        f"{row['valid']:.4f}",
        f"{row['valid_spread']:.4f}" if len(row["valid_by_seed"]) > 1 else NOTHING,
        rounded(row["difference"] if row["settings"] else None, "+.4f"),
        rounded(row["steps"], ",.0f"),
        rounded(row["bytes_read"], ",.2f", 1e6),
        rounded(row["bytes_per_s"], ",.1f", 1e3),
        rounded(row["peak_bytes"], ".2f", 2**30),
        rounded(row["elapsed_s"], ".2f", 60),
        size,
    ]
