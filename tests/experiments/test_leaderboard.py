"""Figures of several runs, and their order."""

from typing import Any

import pytest

from sparing.experiments.leaderboard import averaged, ranked, table
from sparing.runs.results import Figures, Score


def seed(valid: float, **more: Any) -> Figures:
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
        "judged": Score(valid, 500, False, "bytes", 1),
        # Evaluated later, of other weights or other bytes: no matter of the comparison.
        "valid": Score(0.5, 5000, True, "bytes", 1),
        "test": None,
        "device": "abacus",
    }
    return Figures(**(base | more))


def row(name: str, *found: Figures | float | None) -> dict[str, Any]:
    figures = averaged([seed(each) if isinstance(each, float) else each for each in found])
    settings = [] if name == "recipe" else ["model.memory=7"]
    return {"name": name, "status": "failed", "parameters": 1e6, "settings": settings, **figures}


def test_figures_are_means_and_memory_is_the_peak() -> None:
    found = averaged([seed(1.0, peak_bytes=5.0), seed(2.0, peak_bytes=3.0, bytes_read=3e6)])
    assert (found["valid"], found["valid_spread"], found["peak_bytes"]) == (1.5, 0.5, 5.0)
    assert found["valid_by_seed"] == [1.0, 2.0]
    assert (found["bytes_read"], found["steps"]) == (2e6, 1)


def test_a_missing_seed_leaves_no_mean() -> None:
    found = averaged([seed(1.0), None])
    by_seed = found.pop("valid_by_seed")
    assert by_seed == [1.0, None]
    assert set(found.values()) == {None}


def test_the_best_comes_first_and_the_failed_last() -> None:
    rows = ranked([row("recipe", 2.0), row("lost", None), row("better", 1.5), row("worse", 2.5)])
    assert [each["name"] for each in rows] == ["better", "recipe", "worse", "lost"]
    assert [each["difference"] for each in rows] == [-0.5, 0.0, 0.5, None]


def test_a_failed_recipe_leaves_nothing_to_compare_with() -> None:
    rows = ranked([row("recipe", None), row("a|b", 1.5, 1.25)])
    assert [each["difference"] for each in rows] == [None, None]
    lines = table(rows, ["a note"]).splitlines()
    assert lines[2].startswith(r"| a\|b | 1.3750 | 0.1250 | - | 1 | 1.00 | 1.0 | 1.00 | 1.00 |")
    assert lines[3] == f"| recipe | failed |{' - |' * 7} 1.00M |"
    assert lines[-1] == "a note"


def test_a_speed_that_no_run_tells_is_left_open() -> None:
    line = table(ranked([row("recipe", seed(1.5, bytes_per_s=None))])).splitlines()[2]
    assert line == "| recipe | 1.5000 | - | - | 1 | 1.00 | - | 1.00 | 1.00 | 1.00M |"


def test_two_without_a_figure_can_be_put_in_order() -> None:
    rows = ranked([row("recipe", None), row("lost", None)])
    assert [each["name"] for each in rows] == ["recipe", "lost"]


@pytest.mark.parametrize("count", [1, 2])
def test_one_seed_has_no_spread_to_show(count: int) -> None:
    line = table(ranked([row("recipe", *[1.5] * count)])).splitlines()[2]
    assert ("| 1.5000 | - |" in line) == (count == 1)
