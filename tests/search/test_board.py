"""Networks of a board, and its table. tests/cli/test_search.py runs the trials."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.search.small import searched_run

from sparing.data.vocab import ByteVocab
from sparing.errors import UserError
from sparing.experiments import engine
from sparing.experiments.engine import Experiment
from sparing.experiments.leaderboard import rank_rows
from sparing.experiments.variants import Variant
from sparing.models.stack.patterns import cost_of
from sparing.runs.folder import create
from sparing.runs.recipes import recipe
from sparing.runs.train import TrainOptions
from sparing.search import board as module
from sparing.search.board import BOARD, BoardOptions, _notes, board, list_networks
from sparing.search.cost import BlockCosts, as_stack
from sparing.search.derive import derive, searched

COSTS = {"x": 3.0, "f": 1.0, "i": 0.0}


def board_options(seeds: int = 1, random_networks: int = 0) -> BoardOptions:
    train = TrainOptions(device="cpu", progress=False)
    return BoardOptions(seeds=seeds, random_networks=random_networks, train=train, message=print)


def test_a_board_has_searched_networks_rules_and_random_networks(tmp_path: Path) -> None:
    start = "model.pattern=xfxfxfxfxfxf"
    folders = [
        searched_run(tmp_path / "a", "xffffffxffff", start),
        searched_run(tmp_path / "b", "fxfffiffxfff", start),
    ]
    found = list_networks(folders, COSTS, 3)
    names = [network.name for network in found]
    assert names[:3] == ["searched-1", "searched-2", "baseline"]
    assert {"par", "sandwich", "random-1", "random-2", "random-3"} <= set(names)
    # The interleaved rule is the baseline itself here, so it is listed once.
    assert "interleaved" not in names
    patterns = {network.name: network.pattern for network in found}
    assert len(set(patterns.values())) == len(patterns)
    wanted = cost_of("xffffffxffff", COSTS)
    for name in ("random-1", "random-2", "random-3"):
        assert cost_of(patterns[name], COSTS) == pytest.approx(wanted, abs=0.5)
        assert "i" not in patterns[name]


def test_no_rule_is_a_block_short_if_the_depth_is_odd(tmp_path: Path) -> None:
    folder = searched_run(tmp_path / "run", "ffxffff", "model.pattern=xfxfxff")
    found = list_networks([folder], COSTS, 0)
    assert {"baseline", "interleaved", "par", "sandwich"} <= {network.name for network in found}
    assert {len(network.pattern) for network in found} == {7}


def test_random_networks_cost_what_the_searched_one_costs_where_it_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the search, dense blocks cost more than attention; in the board's shape, less."""
    settings = ["model.search.costs=1,3,0", "model.search.budget=1.5"]
    folder = searched_run(tmp_path / "search", "xffffffx", "model.pattern=xfxfxfxf", *settings)
    here = BlockCosts(unit="ms, train", fixed=2.0, blocks=COSTS)
    monkeypatch.setattr(module, "block_costs", lambda *_: here)
    monkeypatch.setattr(module, "timed_patterns", lambda _, all, *__: dict.fromkeys(all, 1.0))
    monkeypatch.setattr(engine, "prepare", lambda *_, **__: None)
    monkeypatch.setattr(engine, "_check_variants", lambda variants, _: parameters_of(variants))
    monkeypatch.setattr(module, "prepare", lambda *_, **__: None)
    monkeypatch.setattr(Experiment, "run", lambda self: (0, self.to_json()))
    _, record = board([folder.path], None, tmp_path / "board", board_options(random_networks=60))
    rows = [row for row in record["rows"] if row["kind"] == "random, equal cost"]
    assert rows
    for row in rows:
        assert row["predicted_ms"] == here.of(row["pattern"])
        assert row["predicted_ms"] == pytest.approx(here.of("xffffffx"), abs=0.5)
    _, twin, note = record["notes"]
    assert twin == "interleaved: the same network as baseline."
    assert note.startswith(f"{len(rows)} of 60 random networks")


def test_a_rule_of_thumb_that_is_missing_is_explained(tmp_path: Path) -> None:
    folder = searched_run(tmp_path / "search", "xfff", "model.pattern=ffff")
    networks = list_networks([folder], COSTS, 0)
    assert "par" not in {network.name for network in networks}
    notes = _notes(networks, searched(folder), 0)
    assert notes == ["par: needs 5 blocks, there are 4."]


def parameters_of(variants: Sequence[Variant]) -> dict[str, int]:
    return {variant.name: 9 for variant in variants}


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
        "valid_half_range": 0.01,
        "valid_by_seed": [1.39, 1.41],
        "test": 1.5,
        "test_perplexity": 30.0,
    }
    once = {**row, "name": "worse", "valid": 1.6, "valid_by_seed": [1.6]}
    rows = rank_rows([once, {**row, "name": "better", "valid": 1.4}])
    lines = BOARD.markdown(rows).splitlines()
    assert len(lines) == 4
    assert "better" in lines[2]
    assert "| 3.88 | 65% |" in lines[2]
    assert "| 1.4000 | 0.0100 |" in lines[2]
    assert "| 1.6000 | - |" in lines[3]
    assert len({line.count("|") for line in lines}) == 1
    assert BOARD.markdown(rows, ["Beware."]).splitlines() == [*lines, "", "Beware."]


def test_a_board_without_seeds_is_refused() -> None:
    with pytest.raises(UserError, match="at least one seed"):
        board_options(seeds=0)


@pytest.mark.parametrize("changed", ["pattern", "steps"])
def test_a_folder_of_another_board_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    here = BlockCosts(unit="ms, train", fixed=2.0, blocks=COSTS)
    monkeypatch.setattr(module, "block_costs", lambda *_: here)
    folder = searched_run(tmp_path / "search", "xfxf", "model.pattern=xfff")
    run = derive(folder)
    old = as_stack(run, "ffff") if changed == "pattern" else run
    if changed == "steps":
        old = replace(run, train=replace(run.train, steps=5))
    create(tmp_path / "board" / "searched-1-seed1", old, ByteVocab(), {})
    with pytest.raises(UserError, match=f"searched-1-seed1 has other settings.*{changed}") as said:
        board([folder.path], run, tmp_path / "board", board_options())
    assert "\n" not in str(said.value)


@pytest.mark.parametrize("base", ["quickstart", "enwik8_par_search"])
def test_only_stacks_can_be_on_a_board(tmp_path: Path, base: str) -> None:
    folder = searched_run(tmp_path / "search", "xfxf")
    with pytest.raises(UserError, match="is not a stack"):
        board([folder.path], recipe(base), tmp_path / "board", board_options())
    assert not (tmp_path / "board").exists()


def test_a_missing_text_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "block_costs", None)
    folder = searched_run(tmp_path / "search", "xfxf")
    run = derive(folder)
    lost = replace(run, data=replace(run.data, corpus=str(tmp_path / "nowhere")))
    with pytest.raises(UserError, match="nowhere"):
        board([folder.path], lost, tmp_path / "board", board_options())
