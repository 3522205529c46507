"""Figures of several runs, and their order."""

from typing import Any

import pytest

from sparing.runs.standings import FIGURES, averaged, ranked, table


def seed(valid: float, peak: float = 1.0) -> dict[str, float]:
    return {**dict.fromkeys(FIGURES, 1.0), "valid": valid, "peak_bytes": peak}


def row(name: str, *valid: float | None) -> dict[str, Any]:
    found = averaged([None if each is None else seed(each) for each in valid])
    settings = [] if name == "recipe" else ["model.memory=7"]
    return {"name": name, "status": "failed", "parameters": 1e6, "settings": settings, **found}


def test_figures_are_means_and_memory_is_the_peak() -> None:
    found = averaged([seed(1.0, 5.0), seed(2.0, 3.0)])
    assert (found["valid"], found["valid_spread"], found["peak_bytes"]) == (1.5, 0.5, 5.0)
    assert found["valid_by_seed"] == [1.0, 2.0]


def test_a_missing_seed_leaves_no_mean() -> None:
    found = averaged([seed(1.0), None])
    assert found["valid"] is found["valid_spread"] is found["steps"] is None
    assert found["valid_by_seed"] == [1.0, None]


def test_the_best_comes_first_and_the_failed_last() -> None:
    rows = ranked([row("recipe", 2.0), row("lost", None), row("better", 1.5), row("worse", 2.5)])
    assert [each["name"] for each in rows] == ["better", "recipe", "worse", "lost"]
    assert [each["difference"] for each in rows] == [-0.5, 0.0, 0.5, None]


def test_a_failed_recipe_leaves_nothing_to_compare_with() -> None:
    rows = ranked([row("recipe", None), row("a|b", 1.5, 1.25)])
    assert [each["difference"] for each in rows] == [None, None]
    lines = table(rows, ["a note"]).splitlines()
    assert lines[2].startswith(r"| a\|b | 1.3750 | 0.1250 | - | 1 |")
    assert lines[3] == f"| recipe | failed |{' - |' * 7} 1.00M |"
    assert lines[-1] == "a note"


def test_two_without_a_figure_can_be_put_in_order() -> None:
    rows = ranked([row("recipe", None), row("lost", None)])
    assert [each["name"] for each in rows] == ["recipe", "lost"]


@pytest.mark.parametrize("count", [1, 2])
def test_one_seed_has_no_spread_to_show(count: int) -> None:
    line = table(ranked([row("recipe", *[1.5] * count)])).splitlines()[2]
    assert ("| 1.5000 | - |" in line) == (count == 1)
