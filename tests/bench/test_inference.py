"""Benchmarks of evaluation and generation."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.bench.small import CPU, small_run, small_stack

from sparing.bench import inference as bench
from sparing.bench.inference import (
    MAX_SEGMENTS,
    EvaluateOptions,
    GenerateOptions,
    Writer,
    bench_evaluate,
    bench_generate,
)
from sparing.errors import UserError
from sparing.runs.build import build_model
from sparing.runs.recipes import recipe


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "CHUNK", 16)


def measured(**options: Any) -> dict[str, Any]:
    run = small_run()
    settings = GenerateOptions(**{"positions": (200, 60, 200), "length": 3, "rounds": 2} | options)
    return bench_generate(build_model(run), run, CPU, settings)


def test_the_report_of_generation_is_complete() -> None:
    figures = measured(batch=2)
    assert [place["position"] for place in figures["positions"]] == [32, 60, 200]
    for place in figures["positions"]:
        assert 0 < place["token_ms"]["least"] <= place["token_ms"]["median"]
        assert place["held_bytes"] > 0
    first, last = (figures["positions"][at]["token_ms"]["median"] for at in (0, -1))
    assert figures["last_over_first"] == last / first
    assert figures["decode_tokens_per_s"] == figures["decode_bytes_per_s"] == 2 * 1000 / last
    assert figures["prefill_tokens_per_s"] == figures["prefill_bytes_per_s"] > 0
    assert (figures["length"], figures["rounds"], figures["batch"]) == (3, 2, 2)


def test_a_memory_that_never_grows_is_filled_before_anything_is_written() -> None:
    run = small_stack("a")
    writer = Writer(build_model(run).eval(), run.model.vocab_size, 1, CPU)
    list(writer.fill())
    assert writer.position == writer.state["blocks.0.entries"].size(1) == 256


def test_the_state_does_not_grow_once_memory_is_full() -> None:
    sizes = {place["state_bytes"] for place in measured()["positions"]}
    assert sizes == {4 * 8 * (2 * 2 + 20)}


def test_writing_does_not_change_a_copy_of_the_writer() -> None:
    run = small_run()
    writer = Writer(build_model(run).eval(), run.model.vocab_size, 1, CPU)
    list(writer.fill())
    copy = writer.copy()
    before = {name: tensor.clone() for name, tensor in copy.state.items()}
    writer.write(5)
    assert (copy.position, writer.position) == (32, 37)
    assert all(torch.equal(copy.state[name], tensor) for name, tensor in before.items())
    assert not torch.equal(writer.state["blocks.0.hidden"], before["blocks.0.hidden"])


def test_skip_to_stops_at_the_given_position() -> None:
    run = small_run()
    writer = Writer(build_model(run).eval(), run.model.vocab_size, 1, CPU)
    assert len(list(writer.skip_to(37))) == 2
    assert writer.position == 37


def test_a_position_before_memory_is_full_is_refused() -> None:
    with pytest.raises(UserError, match="position 30 is too early: memory is not full before"):
        measured(positions=(30,))


@pytest.mark.parametrize("name", ["length", "rounds", "batch"])
def test_sizes_below_one_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"{name} must be at least 1, not 0"):
        measured(**{name: 0})


def test_cached_and_projected_evaluation_are_timed_with_a_full_memory() -> None:
    run = recipe("enwik8_transformer_xl")
    run = replace(run, model=replace(run.model, dim=16, depth=1, heads=2, head_dim=4, ff_dim=16))
    options = EvaluateOptions(memory=20, segment=3, rounds=2)
    figures = bench_evaluate(run, CPU, options)
    assert figures["cached_state_bytes"] == 20 * 2 * 8 * 4
    assert figures["reprojected_state_bytes"] == 20 * 16 * 4
    assert figures["ratio"] > 0


def test_other_families_and_bad_sizes_are_refused() -> None:
    with pytest.raises(UserError, match="no memory to project"):
        bench_evaluate(recipe("enwik8_sha_rnn"), CPU, EvaluateOptions())
    with pytest.raises(UserError, match="segment must be at least 1"):
        EvaluateOptions(segment=0)
    EvaluateOptions(memory=4 * MAX_SEGMENTS - 1, segment=4)
    with pytest.raises(UserError, match="not full after"):
        EvaluateOptions(memory=4 * MAX_SEGMENTS, segment=4)


@pytest.mark.soak
def test_cached_evaluation_costs_at_most_a_third_at_memory_2048() -> None:
    run = recipe("enwik8_transformer_xl")
    run = replace(run, model=replace(run.model, depth=2))
    figures = bench_evaluate(run, CPU, EvaluateOptions(rounds=9))
    assert figures["ratio_of_least"] <= 1 / 3
