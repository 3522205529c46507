"""Micro-benchmarks: cut-offs and span limits."""

import pytest
import torch

from sparing.bench.micro import SPAN, TOKENS, bench_cutoffs, bench_span, zipf_counts
from sparing.device import Hardware
from sparing.errors import UserError
from sparing.runs.config import RunConfig, with_settings
from sparing.runs.recipes import recipe

CPU = Hardware(torch.device("cpu"), "float32")
TINY = ["model.dim=8", "model.depth=1", "model.heads=2", "model.ff_dim=8", "train.batch=2"]


def small(name: str = "enwik8_adaptive_span_small") -> RunConfig:
    return with_settings(recipe(name), [*TINY, "train.segment=8", "model.vocab_size=7"])


def test_steps_under_both_limits_are_measured_in_turns() -> None:
    figures = bench_span(small(), CPU, (256, 64), 2)
    assert figures["ratio"] > 0
    assert set(figures["step_s"]) == {"limit 256", "limit 64"}
    assert figures["span"] == SPAN


def test_other_families_and_bad_limits_are_refused() -> None:
    with pytest.raises(UserError, match="is a "):
        bench_span(recipe("quickstart"), CPU, (256, 64), 2)
    for limits in ((64, 64), (16, 64)):
        with pytest.raises(UserError, match="two different limits"):
            bench_span(small(), CPU, limits, 2)


def test_zipf_counts_have_the_given_size_and_sum() -> None:
    counts = zipf_counts(1000)
    assert len(counts) == 1000
    assert counts.sum() == pytest.approx(TOKENS, rel=1e-4)
    assert counts[0] == pytest.approx(10 * counts[9], rel=1e-3)
    assert (counts[:-1] >= counts[1:]).all()


def test_every_number_of_clusters_is_measured() -> None:
    found = bench_cutoffs(zipf_counts(500), most=2, turns=2)
    assert list(found) == ["1 cluster", "2 clusters"]
    assert len(found["2 clusters"]["cutoffs"]) == 2
    assert found["2 clusters"]["of_plain"] < found["1 cluster"]["of_plain"] < 1
    assert found["1 cluster"]["elapsed_s"] > 0
    with pytest.raises(UserError, match="turns and clusters must be at least 1"):
        bench_cutoffs(zipf_counts(500), turns=0)
    with pytest.raises(UserError, match="fewer than the 500 words"):
        bench_cutoffs(zipf_counts(500), most=10**30)
