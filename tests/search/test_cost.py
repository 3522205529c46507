"""What blocks cost: counted, measured, kept, and adding up."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.search.small import small_search

from sparing.device import Hardware
from sparing.errors import UserError
from sparing.models.stack.model import Stack
from sparing.runs.build import build_model
from sparing.runs.config import RunConfig
from sparing.search import cost
from sparing.search.cost import (
    additivity,
    as_stack,
    block_costs,
    cost_table,
    fit_costs,
    sample_stacks,
    timed_patterns,
)

CPU = Hardware(torch.device("cpu"), "float32")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPARING_HOME", str(tmp_path))
    monkeypatch.setattr(cost, "TURNS", 1)
    monkeypatch.setattr(cost, "LAPS", 1)
    return tmp_path


def test_parameters_and_flops_are_those_of_the_network() -> None:
    run = small_search()
    for pattern in ("xf", "ffx", "i"):
        model = build_model(as_stack(run, pattern))
        assert isinstance(model, Stack)
        # The embedding skip has two numbers for every block, an identity too.
        numbers = sum(p.numel() for p in model.parameters()) - 2 * (len(pattern) - 1)
        assert block_costs(run, "xfi", CPU, "parameters").of(pattern) == numbers
        flops = block_costs(run, "xfi", CPU, "flops").of(pattern)
        assert flops == pytest.approx(model.flops_per_token())


def test_times_are_measured_in_three_regimes_and_kept(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def times(
        run: RunConfig, patterns: list[str], hardware: object, regime: str
    ) -> dict[str, float]:
        fixed = {"train": 7.0, "prefill": 5.0, "decode": 2.0}[regime] * run.model.dim
        return {p: fixed + 3.0 * p.count("x") + 2.0 * p.count("f") for p in patterns}

    monkeypatch.setattr(cost, "timed_patterns", times)
    run = small_search()
    found = block_costs(run, "xfi", CPU, "time")
    assert found.fixed == pytest.approx(7 * 8)
    assert found.blocks == pytest.approx({"x": 3.0, "f": 2.0, "i": 0.0})
    (path,) = (home / "costs").iterdir()
    table = json.loads(path.read_text())
    assert set(table["regimes"]) == {"train", "prefill", "decode"}
    table["regimes"]["train"]["fixed_ms"] = 1234.5
    path.write_text(json.dumps(table))
    assert block_costs(run, "xfi", CPU, "time").fixed == 1234.5
    # A damaged table is measured again.
    for garbled in ({"fixed_ms": "slow"}, {"blocks_ms": {"x": 1.0}}):
        train = table["regimes"]["train"] | garbled
        path.write_text(json.dumps(table | {"regimes": table["regimes"] | {"train": train}}))
        assert block_costs(run, "xfi", CPU, "time").fixed == pytest.approx(7 * 8)
    # And so is one from before memories were filled.
    path.write_text(json.dumps(table | {"format": 1}))
    assert block_costs(run, "xfi", CPU, "time").fixed == pytest.approx(7 * 8)
    # Regimes differ, and so does another shape.
    assert block_costs(run, "xfi", CPU, "time", "decode").fixed == pytest.approx(2 * 8)
    other = cost_table(small_search("model.dim=16"), "xfi", CPU)["regimes"]["train"]
    assert other["fixed_ms"] == pytest.approx(7 * 16)
    # And so may another optimizer, whatever its name, or another version of this package.
    faster = replace(run, optim=replace(run.optim, lr=0.5))
    assert block_costs(faster, "xfi", CPU, "time").fixed == pytest.approx(7 * 8)
    monkeypatch.setattr(cost, "__version__", "another")
    assert block_costs(run, "xfi", CPU, "time").fixed == pytest.approx(7 * 8)


def test_costs_that_add_up_are_found_exactly() -> None:
    true = {"x": 3.0, "f": 1.25, "l": 0.5, "i": 0.0}
    patterns = sample_stacks("filx", 6)
    assert all(len(pattern) == 6 for pattern in patterns)
    times = {pattern: 2.0 + sum(true[letter] for letter in pattern) for pattern in patterns}
    fixed, each = fit_costs(times, "flx")
    assert fixed == pytest.approx(2)
    assert each == pytest.approx({"f": 1.25, "l": 0.5, "x": 3.0})


def test_no_block_costs_less_than_nothing() -> None:
    times = {"xf": 3.0, "ff": 1.9, "xx": 4.1, "if": 2.0, "ix": 3.0, "ii": 2.0}
    _, each = fit_costs(times, "fx")
    assert each["f"] == 0
    assert each["x"] == pytest.approx(1.05, abs=0.1)


def test_where_the_rest_would_cost_less_than_nothing_blocks_are_fitted_without_it() -> None:
    times = {"xf": 3.9, "ff": 1.6, "xx": 6.2, "xxff": 8.2, "ffff": 4.2}
    fixed, each = fit_costs(times, "fx")
    assert fixed == 0
    shares = [sum(each[x] for x in pattern) / time for pattern, time in times.items()]
    # Least squares without a constant: what is left over is at right angles to every column.
    for letter in "fx":
        column = [pattern.count(letter) / time for pattern, time in times.items()]
        errors = zip(column, shares, strict=True)
        assert sum(c * (1 - s) for c, s in errors) == pytest.approx(0, abs=1e-9)


def test_every_kind_of_block_can_be_timed_in_every_regime() -> None:
    run = small_search("model.search.candidates=lsaxgbfi")
    for regime in cost.REGIMES:
        found = timed_patterns(run, ["lsaxgbfi"], CPU, regime)
        assert found["lsaxgbfi"] > 0


@pytest.mark.parametrize("one_token", [True, False])
def test_attention_with_learned_spans_is_timed_with_a_full_memory(one_token: bool) -> None:
    run = as_stack(small_search(), "af")
    state = cost._Reader(run, CPU, one_token=one_token).state
    assert (state["blocks.0.seen"] >= state["blocks.0.entries"].size(1)).all()
    assert state["blocks.0.entries"].size(1) == 256


def test_additivity_predicts_stacks_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def times(run: object, patterns: list[str], hardware: object) -> dict[str, float]:
        """Costs that add up, but for one stack that takes twice as long."""
        each = {p: 1.0 + 3.0 * p.count("x") + 2.0 * p.count("f") for p in patterns}
        return each | {"xxff": 2 * each["xxff"]}

    monkeypatch.setattr(cost, "timed_patterns", times)
    known = cost.sample_stacks("fix", 4)
    fresh = [p for p in ("xxff", "iiii", "xxxx", "ffff") if p not in known]
    found = additivity(small_search(), "xfi", [*fresh, *known], CPU)
    assert [row["pattern"] for row in found["stacks"]] == fresh
    assert found["worst_error"] == pytest.approx(0.5)
    assert found["mean_error"] == pytest.approx(0.5 / len(fresh))
    with pytest.raises(UserError, match="no stacks are left"):
        additivity(small_search(), "xfi", known, CPU)


@pytest.mark.soak
def test_measured_times_add_up_on_other_stacks_than_they_were_found_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cost, "TURNS", 6)
    monkeypatch.setattr(cost, "LAPS", 3)
    wide = ["model.dim=64", "model.relative.head_dim=32", "model.feedforward.dim=256"]
    run = small_search(*wide)
    found = additivity(run, "xfi", ["xfxf", "xxff", "ffff", "xfff"], CPU)
    assert found["mean_error"] < 0.15
