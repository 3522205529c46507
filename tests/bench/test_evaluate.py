"""The benchmark of cached keys and values: it measures what it says."""

from dataclasses import replace

import pytest
import torch
from sparing.bench.evaluate import PATIENCE

from sparing.bench.inference import EvaluateOptions, bench_evaluate
from sparing.device import Hardware
from sparing.errors import UserError
from sparing.runs.recipes import recipe

CPU = Hardware(torch.device("cpu"), "float32")


def test_both_ways_are_timed_with_memory_full() -> None:
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
    EvaluateOptions(memory=4 * PATIENCE - 1, segment=4)
    with pytest.raises(UserError, match="not full after"):
        EvaluateOptions(memory=4 * PATIENCE, segment=4)


@pytest.mark.soak
def test_cached_evaluation_costs_at_most_a_third_at_memory_2048() -> None:
    run = recipe("enwik8_transformer_xl")
    run = replace(run, model=replace(run.model, depth=2))
    figures = bench_evaluate(run, CPU, EvaluateOptions(rounds=9))
    assert figures["ratio_of_least"] <= 1 / 3
