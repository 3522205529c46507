"""Tables of runs, as text and as Markdown."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sparing.errors import UserError
from sparing.runs.results import RunSummary, SplitResult
from sparing.runs.table import (
    RESULTS,
    Row,
    average_results,
    drop_copies,
    group_seeds,
    runs_below,
)


def as_text(rows: Sequence[Row]) -> str:
    return RESULTS.text([row.to_json() for row in rows])


def as_markdown(rows: Sequence[Row]) -> str:
    return RESULTS.markdown([row.to_json() for row in rows])


READING = "bytes, 8 carried streams"


def scored(bits: float, reading: str = READING, *, whole: bool = True) -> SplitResult:
    return SplitResult(bits, 5_000_000 if whole else 500_000, whole, reading, 10)


def summary(seed: int = 1, **more: Any) -> RunSummary:
    base: dict[str, Any] = {
        "recipe": "fast",
        "corpus": "enwik8",
        "seed": seed,
        "settings": {"train": {"steps": 3}},
        "parameters": 51_660_000,
        "bytes_read": 9e7,
        "elapsed_s": 1200.0,
        "bytes_per_s": 314_159.0,
        "peak_bytes": 2.0**32,
        "last_validation": scored(1.05),
        "best_validation": scored(1.05),
        "valid": scored(1.05),
        "test": None,
        "device": "abacus",
    }
    return RunSummary(**(base | more))


def cells(text: str, line: int = 1) -> list[str]:
    return [cell.strip() for cell in text.splitlines()[line].split("  ") if cell]


def test_a_run_is_a_row_of_aligned_columns() -> None:
    rows = group_seeds(
        {Path("fast/a"): summary(), Path("mine"): summary(test=scored(1.02))}, Path("x")
    )
    text = as_text(rows)
    data = ["51.7M", "90.0", "20.0", "314", "4.0", "1.0500"]
    assert cells(text) == ["fast/a", *data, "-", "-", "1", "abacus"]
    assert cells(text, 2) == ["mine (fast)", *data, "1.0200", READING, "1", "abacus"]
    starts = {line.index("abacus") for line in text.splitlines()[1:]}
    assert starts == {text.splitlines()[0].index("device")}


def test_a_text_of_the_users_is_named() -> None:
    rows = group_seeds({Path("mine"): summary(corpus="some/where/part.bin")}, Path("x"))
    assert cells(as_text(rows))[0] == "mine (fast, on part.bin)"
    assert rows[0].to_json()["corpus"] == "some/where/part.bin"


def test_seeds_are_averaged_with_half_their_range() -> None:
    found = {
        Path(f"fast/seed{seed}"): summary(
            seed, test=scored(bits), elapsed_s=60.0 * seed, peak_bytes=10.0 - seed
        )
        for seed, bits in ((1, 1.01), (2, 1.02), (3, 1.06))
    }
    (row,) = group_seeds(found, Path("x"))
    data = row.to_json()
    assert (data["run"], data["seeds"], data["elapsed_s"]) == ("fast", [1, 2, 3], 120)
    assert data["paths"] == ["x/fast/seed1", "x/fast/seed2", "x/fast/seed3"]
    assert data["test"]["bits_per_byte"] == pytest.approx(1.03)
    assert data["test"]["half_range"] == pytest.approx(0.025)
    assert data["test"]["by_seed"] == [1.01, 1.02, 1.06]
    assert (data["test"]["step"], data["peak_bytes"]) == (10, 9)
    assert "1.0300 ± 0.0250" in as_text([row])


def test_seeds_of_other_settings_keep_their_own_row() -> None:
    found = {
        Path("fast/seed1"): summary(1),
        Path("fast/seed2"): summary(2),
        Path("fast/seed3"): summary(3, settings={"train": {"steps": 4}}),
        Path("fast/trial"): summary(4),
    }
    names = [row.name for row in group_seeds(found, Path("x"))]
    assert names == ["fast/seed1+seed2", "fast/seed3", "fast/trial"]


def test_seeds_that_carry_their_name_are_grouped_by_it() -> None:
    found = {Path(f"out/{name}-seed{n}"): summary(n) for name in ("recipe", "wide") for n in (1, 2)}
    found[Path("out/wide-seed3")] = summary(3, settings={"train": {"steps": 4}})
    found[Path("out/reseed4")] = summary(4)
    names = [row.name for row in group_seeds(found, Path("x"))]
    assert names == ["out/recipe", "out/reseed4", "out/wide-seed1+wide-seed2", "out/wide-seed3"]


def test_a_copy_of_a_run_is_not_another_seed() -> None:
    found = {Path(f"fast/seed{n}"): summary(min(n, 2)) for n in (1, 2, 3)}
    found[Path("other")] = found[Path("again")] = summary(1)
    kept, copies = drop_copies(found)
    assert copies == {
        Path("fast/seed3"): "it has the settings and the seed (2) of fast/seed2",
    }
    assert set(kept) == set(found) - set(copies)


def test_seeds_at_the_top_are_named_by_the_folder(tmp_path: Path) -> None:
    (row,) = group_seeds({Path("seed1"): summary(1), Path("seed2"): summary(2)}, tmp_path / "fast")
    assert row.name == "fast"


def test_results_of_another_reading_are_not_mixed_in() -> None:
    data = average_results([None, scored(1.0), scored(2.0, "no-newlines, x"), scored(1.2)])
    assert data is not None
    assert data["by_seed"] == [1.0, 1.2]
    assert average_results([None]) is None
    found = {Path(f"seed{n}"): summary(n, test=scored(1.0) if n else None) for n in range(3)}
    assert "1.0000 ± 0.0000 (2 of 3 seeds)" in as_text(group_seeds(found, Path("x")))


def test_a_partial_result_says_how_much_and_another_protocol_is_named() -> None:
    partial = scored(1.5, "no-newlines, 8 carried streams", whole=False)
    text = as_text(group_seeds({Path("a"): summary(valid=partial)}, Path("x")))
    assert "1.5000 (first 500,000 bytes, no-newlines)" in text


def test_a_bar_in_a_name_does_not_end_its_cell() -> None:
    line = as_markdown(group_seeds({Path("a|b"): summary()}, Path("x"))).splitlines()[2]
    assert line.startswith(r"| `a\|b (fast)` | 51.7M |")


def test_markdown_is_a_table() -> None:
    lines = as_markdown(group_seeds({Path("fast"): summary()}, Path("x"))).splitlines()
    assert lines[0].startswith("| run | parameters | MB read | minutes | kB/s | peak GiB | valid")
    assert lines[1].startswith("| --- | ---: |")
    assert lines[2].startswith("| `fast` | 51.7M | 90.0 | 20.0 | 314 | 4.0 | 1.0500 | - | - | 1 |")
    assert {line.count("|") for line in lines} == {12}


def test_runs_are_found_at_any_depth_but_not_inside_their_own_folders(tmp_path: Path) -> None:
    for place in ("b/seed1", "a", ".hidden", "a/checkpoints/best"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "config.json").write_text("{}")
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal" / "metrics.jsonl").write_text("")
    found = [str(path.relative_to(tmp_path)) for path in runs_below(tmp_path)]
    assert found == ["a", "b/seed1", "journal"]
    with pytest.raises(UserError, match="is not a folder"):
        runs_below(tmp_path / "a" / "config.json")
