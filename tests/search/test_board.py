"""Who stands on a board, and what its table says. The trainings are in the stories."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.search.small import searched_run

from sparing.data.vocab import Bytes
from sparing.errors import UserError
from sparing.models.stack.patterns import cost_of
from sparing.runs.folder import create
from sparing.runs.recipes import recipe
from sparing.runs.train import TrainOptions
from sparing.search import board as module
from sparing.search.board import BoardOptions, Entry, board, entries, table
from sparing.search.cost import Prices, as_stack
from sparing.search.derive import derive

COSTS = {"x": 3.0, "f": 1.0, "i": 0.0}
OPTIONS = BoardOptions(seeds=1, chances=0, train=TrainOptions(device="cpu", progress=False))


def test_searches_rules_and_chance_stand_side_by_side(tmp_path: Path) -> None:
    start = "model.pattern=xfxfxfxfxfxf"
    folders = [
        searched_run(tmp_path / "a", "xffffffxffff", start),
        searched_run(tmp_path / "b", "fxfffiffxfff", start),
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


def test_no_rule_is_a_block_short_where_the_depth_is_odd(tmp_path: Path) -> None:
    folder = searched_run(tmp_path / "run", "ffxffff", "model.pattern=xfxfxff")
    found = entries([folder], COSTS, chances=0)
    assert {"baseline", "interleaved", "par", "sandwich"} <= {entry.name for entry in found}
    assert {len(entry.pattern) for entry in found} == {7}


def test_random_networks_cost_what_the_searched_one_costs_where_it_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search had dense blocks dearer than attention; in the board's shape it is otherwise."""
    priced = ["model.search.costs=1,3,0", "model.search.budget=1.5"]
    folder = searched_run(tmp_path / "search", "xffffffx", "model.pattern=xfxfxfxf", *priced)
    here = Prices(unit="ms, train", fixed=2.0, blocks=COSTS)
    monkeypatch.setattr(module, "prices", lambda *_: here)
    monkeypatch.setattr(module, "timed_patterns", lambda _, all, *__: dict.fromkeys(all, 1.0))
    monkeypatch.setattr(module, "_trained", lambda *_: 0)
    monkeypatch.setattr(module, "_row", row_of)
    monkeypatch.setattr(module, "write", lambda *_: None)
    options = BoardOptions(seeds=1, chances=60, train=TrainOptions(device="cpu"))
    _, record = board([folder.path], None, tmp_path / "board", options)
    rows = [row for row in record["rows"] if row["kind"] == "random, equal cost"]
    assert rows
    for row in rows:
        assert row["predicted_ms"] == here.of(row["pattern"])
        assert row["predicted_ms"] == pytest.approx(here.of("xffffffx"), abs=0.5)
    (note,) = record["notes"]
    assert note.startswith(f"{len(rows)} of 60 random networks")


def row_of(run: object, entry: Entry, *_: object) -> dict[str, Any]:
    return {"kind": entry.kind, "pattern": entry.pattern, "train_ms": 1.0}


def test_the_table_has_the_best_first() -> None:
    row = {
        "pattern": "xf",
        "parameters": 3_900_000,
        "train_ms": 4.0,
        "prefill_ms": 2.0,
        "decode_ms": 0.5,
        "predicted_ms": 3.875,
        "share_of_time": 0.65,
        "steps": 1000.0,
        "valid_spread": 0.01,
        "valid_by_seed": [1.39, 1.41],
        "test": 1.5,
        "test_perplexity": 30.0,
    }
    once = {**row, "name": "worse", "valid": 1.6, "valid_by_seed": [1.6]}
    rows = [once, {**row, "name": "better", "valid": 1.4}]
    lines = table(rows).splitlines()
    assert len(lines) == 4
    assert "better" in lines[2]
    assert "| 3.88 | 65% |" in lines[2]
    assert "| 1.4000 | 0.0100 |" in lines[2]
    assert "| 1.6000 | - |" in lines[3]
    assert len({line.count("|") for line in lines}) == 1
    assert table(rows, ["Beware."]).splitlines() == [*lines, "", "Beware."]


def test_a_board_without_seeds_is_refused() -> None:
    with pytest.raises(UserError, match="at least one seed"):
        BoardOptions(seeds=0, train=TrainOptions())


@pytest.mark.parametrize("changed", ["pattern", "steps"])
def test_a_folder_of_another_board_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    here = Prices(unit="ms, train", fixed=2.0, blocks=COSTS)
    monkeypatch.setattr(module, "prices", lambda *_: here)
    folder = searched_run(tmp_path / "search", "xfxf", "model.pattern=xfff")
    run = derive(folder)
    old = as_stack(run, "ffff") if changed == "pattern" else run
    if changed == "steps":
        old = replace(run, train=replace(run.train, steps=5))
    create(tmp_path / "board" / "searched-1-seed1", old, Bytes(), {})
    with pytest.raises(UserError, match=f"searched-1-seed1 is of another board.*{changed}") as said:
        board([folder.path], run, tmp_path / "board", OPTIONS)
    assert "\n" not in str(said.value)


@pytest.mark.parametrize("base", ["quickstart", "enwik8_par_search"])
def test_only_stacks_stand_on_a_board(tmp_path: Path, base: str) -> None:
    folder = searched_run(tmp_path / "search", "xfxf")
    with pytest.raises(UserError, match="is no stack"):
        board([folder.path], recipe(base), tmp_path / "board", OPTIONS)
    assert not (tmp_path / "board").exists()


def test_the_text_is_looked_for_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "prices", None)
    folder = searched_run(tmp_path / "search", "xfxf")
    run = derive(folder)
    lost = replace(run, data=replace(run.data, corpus=str(tmp_path / "nowhere")))
    with pytest.raises(UserError, match="nowhere"):
        board([folder.path], lost, tmp_path / "board", OPTIONS)
