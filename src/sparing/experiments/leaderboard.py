"""Results of an experiment: averages over seeds, the order of the variants, table columns."""

from collections.abc import Mapping, Sequence
from typing import Any

from sparing.runs.layout import NOTHING, format_number
from sparing.runs.results import RunSummary, SplitResult, half_range, mean

MEANS = ("bytes_read", "bytes_per_s", "elapsed_s")


def average_seeds(seeds: Sequence[RunSummary | None], *, tested: bool = False) -> dict[str, Any]:
    """The results of a variant from those of its seeds; None while a seed is missing.

    `valid` is always a validation during training, never a later evaluation, so all variants are
    measured on the same bytes. It is the last one; with `tested`, the best one, whose weights are
    those that `test` is measured with.
    """
    known = [seed for seed in seeds if seed is not None]
    complete = len(known) == len(seeds)
    peaks = [seed.peak_bytes for seed in known if seed.peak_bytes is not None]
    steps = [seed.last_validation.step for seed in known if seed.last_validation is not None]
    field = "best_validation" if tested else "last_validation"
    found = {
        **_average_split("valid", [_result(seed, field) for seed in seeds]),
        "steps": mean(steps) if complete else None,
        **{name: mean([getattr(seed, name) for seed in known if complete]) for name in MEANS},
        "peak_bytes": max(peaks, default=None) if complete else None,
    }
    if not tested:
        return found
    test = [_result(seed, "test") for seed in seeds]
    perplexity = [result.perplexity_per_token for result in test if result is not None]
    return {
        **found,
        **_average_split("test", test),
        "test_perplexity": mean(perplexity) if complete else None,
    }


def _result(seed: RunSummary | None, field: str) -> SplitResult | None:
    return None if seed is None else getattr(seed, field)


def _average_split(split: str, results: Sequence[SplitResult | None]) -> dict[str, Any]:
    by_seed = [None if result is None else result.bits_per_byte for result in results]
    known = [bits for bits in by_seed if bits is not None]
    complete = len(known) == len(by_seed)
    return {
        split: mean(known) if complete else None,
        f"{split}_half_range": half_range(known) if complete else None,
        f"{split}_by_seed": by_seed,
    }


def rank_rows(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sort rows by `valid`, best first and unknown last; add the difference to the first given."""
    start = rows[0]["valid"]
    for row in rows:
        known = row["valid"] is not None and start is not None
        row["difference"] = row["valid"] - start if known else None
    return sorted(rows, key=lambda row: (row["valid"] is None, row["valid"]))


def valid_cell(row: Mapping[str, Any]) -> str:
    """Bits per byte of a variant, or why there are none yet."""
    return str(row["status"]) if row["valid"] is None else f"{row['valid']:.4f}"


def half_range_cell(row: Mapping[str, Any]) -> str:
    """Half the range over the seeds, where there are several."""
    several = len(row["valid_by_seed"]) > 1
    return format_number(row["valid_half_range"], ".4f") if several else NOTHING


def parameters_cell(row: Mapping[str, Any]) -> str:
    """Parameters in millions."""
    return f"{row['parameters'] / 1e6:.2f}M"
