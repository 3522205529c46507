"""The benchmark of unused limits, at a size of no meaning."""

import pytest
import torch
from sparing.bench.span import SPAN

from sparing.bench.micro import bench_span
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


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(UserError, match="is a "):
        bench_span(recipe("quickstart"), CPU, (256, 64), 2)
    for limits in ((64, 64), (16, 64)):
        with pytest.raises(UserError, match="two limits"):
            bench_span(small(), CPU, limits, 2)
