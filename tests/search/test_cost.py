"""What blocks cost: counted, measured, kept, and adding up."""

import json
from pathlib import Path

import pytest
import torch
from tests.search.small import small_search

from sparing.device import Hardware
from sparing.models.stack import Stack
from sparing.runs.build import build_model
from sparing.search import cost
from sparing.search.cost import Prices, additivity, as_stack, measured, prices, timed_patterns

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
        # The reminder has two numbers for every block, an identity too.
        numbers = sum(p.numel() for p in model.parameters()) - 2 * (len(pattern) - 1)
        assert prices(run, "xfi", CPU, "parameters").of(pattern) == numbers
        flops = prices(run, "xfi", CPU, "flops").of(pattern)
        assert flops == pytest.approx(model.flops_per_token())


def test_times_are_measured_in_three_regimes_and_kept(home: Path) -> None:
    run = small_search()
    found = prices(run, "xfi", CPU, "time")
    assert found.fixed > 0
    assert found.blocks["i"] == 0
    assert set(found.blocks) == {"x", "f", "i"}
    (path,) = (home / "costs").iterdir()
    table = json.loads(path.read_text())
    assert set(table["regimes"]) == {"train", "prefill", "decode"}
    table["regimes"]["train"]["fixed_ms"] = 1234.5
    path.write_text(json.dumps(table))
    assert prices(run, "xfi", CPU, "time").fixed == 1234.5
    # Regimes differ, and so does another shape.
    assert prices(run, "xfi", CPU, "time", "decode").fixed != 1234.5
    assert measured(small_search(dim=16), "xfi", CPU)["regimes"]["train"]["fixed_ms"] != 1234.5


def test_every_kind_of_block_can_be_timed_in_every_regime() -> None:
    run = small_search(candidates="lsaxgbfi")
    for regime in cost.REGIMES:
        found = timed_patterns(run, ["lsaxgbfi"], CPU, regime)
        assert found["lsaxgbfi"] > 0


def test_additivity_compares_prediction_with_measurement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = {"xx": 7.0, "f": 2.0}
    monkeypatch.setattr(cost, "timed_patterns", lambda *_: times)
    table = Prices(unit="ms", fixed=1.0, blocks={"x": 3.0, "f": 2.0})
    found = additivity(small_search(), table, ["xx", "f"], CPU)
    assert found["mean_error"] == pytest.approx(0.25)
    assert found["worst_error"] == pytest.approx(0.5)
    assert found["stacks"][0] == {"pattern": "xx", "measured_ms": 7.0, "predicted_ms": 7.0}


@pytest.mark.soak
def test_measured_times_add_up_on_stacks_of_two_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "TURNS", 6)
    monkeypatch.setattr(cost, "LAPS", 3)
    run = small_search(dim=64, head_dim=32, ff_dim=256)
    table = prices(run, "xfi", CPU, "time")
    found = additivity(run, table, ["xfxf", "xxff", "ffff", "xfff"], CPU)
    assert found["mean_error"] < 0.25
