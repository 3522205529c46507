"""Averages over seeds, and the order of variants."""

from typing import Any

import pytest

from sparing.experiments.compare import COMPARISON
from sparing.experiments.leaderboard import average_seeds, rank_rows
from sparing.runs.results import RunSummary, SplitResult


def seed(valid: float, **more: Any) -> RunSummary:
    base: dict[str, Any] = {
        "recipe": "own",
        "corpus": "enwik8",
        "seed": 1,
        "settings": {},
        "parameters": 9,
        "bytes_read": 1e6,
        "elapsed_s": 60.0,
        "bytes_per_s": 1e3,
        "peak_bytes": 2.0**30,
        "last_validation": SplitResult(valid, 500, False, "bytes", 1),
        "best_validation": SplitResult(valid - 0.25, 500, False, "bytes", 1, 3.0),
        # Evaluated later, with other weights or on other bytes: the leaderboard ignores it.
        "valid": SplitResult(0.5, 5000, True, "bytes", 1),
        "test": None,
        "device": "abacus",
    }
    return RunSummary(**(base | more))


def row(name: str, *found: RunSummary | float | None) -> dict[str, Any]:
    results = average_seeds([seed(each) if isinstance(each, float) else each for each in found])
    settings = [] if name == "recipe" else ["model.memory=7"]
    return {"name": name, "status": "failed", "parameters": 1e6, "settings": settings, **results}


def test_results_are_means_and_memory_is_the_peak() -> None:
    found = average_seeds([seed(1.0, peak_bytes=5.0), seed(2.0, peak_bytes=3.0, bytes_read=3e6)])
    assert (found["valid"], found["valid_half_range"], found["peak_bytes"]) == (1.5, 0.5, 5.0)
    assert found["valid_by_seed"] == [1.0, 2.0]
    assert (found["bytes_read"], found["steps"]) == (2e6, 1)


def test_a_missing_seed_leaves_no_mean() -> None:
    found = average_seeds([seed(1.0), None])
    by_seed = found.pop("valid_by_seed")
    assert by_seed == [1.0, None]
    assert set(found.values()) == {None}


def test_tested_trials_count_with_the_weights_that_were_tested() -> None:
    test = [SplitResult(bits, 5000, True, "bytes", 1, 2 * bits) for bits in (1.0, 2.0)]
    found = average_seeds([seed(1.5, test=each) for each in test], tested=True)
    assert (found["valid"], found["valid_by_seed"]) == (1.25, [1.25, 1.25])
    assert (found["test"], found["test_half_range"], found["test_perplexity"]) == (1.5, 0.5, 3.0)
    found = average_seeds([seed(1.5, test=test[0]), None], tested=True)
    assert (found["test"], found["test_by_seed"]) == (None, [1.0, None])
    assert found["test_perplexity"] is None


def test_the_best_comes_first_and_the_failed_last() -> None:
    rows = rank_rows([row("recipe", 2.0), row("lost", None), row("better", 1.5), row("worse", 2.5)])
    assert [each["name"] for each in rows] == ["better", "recipe", "worse", "lost"]
    assert [each["difference"] for each in rows] == [-0.5, 0.0, 0.5, None]


def test_a_failed_recipe_leaves_nothing_to_compare_with() -> None:
    rows = rank_rows([row("recipe", None), row("a|b", 1.5, 1.25)])
    assert [each["difference"] for each in rows] == [None, None]
    lines = COMPARISON.markdown(rows, ["a note"]).splitlines()
    assert lines[2].startswith(r"| a\|b | 1.3750 | 0.1250 | - | 1 | 1.00 | 1.0 | 1.00 | 1.00 |")
    assert lines[3] == f"| recipe | failed |{' - |' * 7} 1.00M |"
    assert lines[-1] == "a note"


def test_a_speed_that_no_run_records_is_left_open() -> None:
    line = COMPARISON.markdown(
        rank_rows([row("recipe", seed(1.5, bytes_per_s=None))])
    ).splitlines()[2]
    assert line == "| recipe | 1.5000 | - | - | 1 | 1.00 | - | 1.00 | 1.00 | 1.00M |"


def test_two_variants_without_a_result_can_be_ranked() -> None:
    rows = rank_rows([row("recipe", None), row("lost", None)])
    assert [each["name"] for each in rows] == ["recipe", "lost"]


@pytest.mark.parametrize("count", [1, 2])
def test_one_seed_has_no_range_to_show(count: int) -> None:
    line = COMPARISON.markdown(rank_rows([row("recipe", *[1.5] * count)])).splitlines()[2]
    assert ("| 1.5000 | - |" in line) == (count == 1)
