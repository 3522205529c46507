"""Who stands on a board, and what its table says. The trainings are in the stories."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.search.small import searched_run

from sparing.data.vocab import Bytes
from sparing.errors import UserError
from sparing.models.patterns import cost_of
from sparing.runs.folder import create
from sparing.runs.train import TrainOptions
from sparing.search.board import BoardOptions, board, entries, table
from sparing.search.cost import as_stack
from sparing.search.derive import derive

COSTS = {"x": 3.0, "f": 1.0, "i": 0.0}
PRICED = {"costs": (3.0, 1.0, 0.0), "budget": 1.5}


def test_searches_rules_and_chance_stand_side_by_side(tmp_path: Path) -> None:
    start = "xfxfxfxfxfxf"
    folders = [
        searched_run(tmp_path / "a", "xffffffxffff", pattern=start),
        searched_run(tmp_path / "b", "fxfffiffxfff", pattern=start),
    ]
    found = entries(folders, COSTS, chances=3)
    names = [entry.name for entry in found]
    assert names[:3] == ["searched-1", "searched-2", "baseline"]
    assert {"par", "sandwich", "random-1", "random-2", "random-3"} <= set(names)
    # The interleaved rule is the baseline itself here, so it stands once.
    assert "interleaved" not in names
    patterns = {entry.name: entry.pattern for entry in found}
    assert len(set(patterns.values())) == len(patterns)
    wanted = cost_of("xffffffxffff", COSTS)
    for name in ("random-1", "random-2", "random-3"):
        assert cost_of(patterns[name], COSTS) == pytest.approx(wanted, abs=0.5)
        assert "i" not in patterns[name]


def test_the_table_has_the_best_first() -> None:
    row = {
        "pattern": "xf",
        "parameters": 3_900_000,
        "train_ms": 4.0,
        "prefill_ms": 2.0,
        "decode_ms": 0.5,
        "share_of_time": 0.65,
        "steps": 1000.0,
        "valid_spread": 0.01,
        "test": 1.5,
        "test_perplexity": 30.0,
    }
    said = table([{**row, "name": "worse", "valid": 1.6}, {**row, "name": "better", "valid": 1.4}])
    lines = said.splitlines()
    assert len(lines) == 4
    assert "better" in lines[2]
    assert "65%" in lines[2]
    assert len({line.count("|") for line in lines}) == 1


def test_a_board_without_seeds_is_refused() -> None:
    with pytest.raises(UserError, match="at least one seed"):
        BoardOptions(seeds=0, train=TrainOptions())


@pytest.mark.parametrize("changed", ["pattern", "steps"])
def test_a_folder_of_another_board_is_refused_by_name(tmp_path: Path, changed: str) -> None:
    folder = searched_run(tmp_path / "search", "xfxf", pattern="xfff", **PRICED)
    run = derive(folder)
    old = as_stack(run, "ffff") if changed == "pattern" else run
    if changed == "steps":
        old = replace(run, train=replace(run.train, steps=5))
    create(tmp_path / "board" / "searched-1-seed1", old, Bytes(), {})
    options = BoardOptions(seeds=1, chances=0, train=TrainOptions(device="cpu", progress=False))
    with pytest.raises(UserError, match=f"searched-1-seed1 is of another board.*{changed}") as said:
        board([folder.path], run, tmp_path / "board", options)
    assert "\n" not in str(said.value)
