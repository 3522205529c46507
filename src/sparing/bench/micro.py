"""Micro-benchmarks: the search for softmax cut-offs, and the cost of an unused span limit."""

import time
from dataclasses import replace
from typing import Any

import numpy as np

from sparing.bench.timing import quartiles, time_in_turns
from sparing.bench.train import Stepper
from sparing.data.cutoffs import CutoffConfig, Ints, optimal_cutoffs
from sparing.device import Hardware
from sparing.errors import UserError
from sparing.runs.config import RunConfig
from sparing.units import pluralize

TOKENS = 103_000_000
"""Tokens of the synthetic text, as many as WikiText-103 has."""
SPAN = 32
"""Fixed length of all spans."""


def zipf_counts(words: int) -> Ints:
    """Counts of words whose frequency is one over their rank; each occurs at least once."""
    ranks = np.arange(1, words + 1)
    shares = 1 / ranks / (1 / ranks).sum()
    counts: Ints = np.maximum(1, np.round(TOKENS * shares)).astype(np.int64)
    return counts


def bench_cutoffs(
    counts: Ints, *, most: int = 3, turns: int = 3, dim: int = 512
) -> dict[str, dict[str, Any]]:
    """Time the search for one to `most` cut-offs, every word a possible one; the best of `turns`.

    That is the hardest case.
    """
    if turns < 1 or most < 1:
        raise UserError("turns and clusters must be at least 1")
    if most >= len(counts):
        raise UserError(f"clusters must be fewer than the {pluralize(len(counts), 'word')}")
    found = {}
    for clusters in range(1, most + 1):
        config = CutoffConfig(clusters=clusters, dim=dim, align=1)
        durations = []
        for _ in range(turns):
            started_at = time.perf_counter()
            cuts = optimal_cutoffs(counts, config)
            durations.append(time.perf_counter() - started_at)
        found[pluralize(clusters, "cluster")] = {
            "elapsed_s": min(durations),
            "cutoffs": list(cuts.cutoffs),
            "of_plain": cuts.cost / cuts.plain,
        }
    return found


def bench_span(
    run: RunConfig, hardware: Hardware, limits: tuple[int, int], steps: int
) -> dict[str, Any]:
    """Time training steps under two span limits in turns, with all spans of the same length."""
    if run.family != "adaptive_span":
        raise UserError(f"recipe {run.recipe} is a {run.family}; name one of family adaptive_span")
    if steps < 1 or min(limits) <= SPAN or limits[0] == limits[1]:
        raise UserError(
            f"use at least one step and two different limits above {SPAN}, not {steps} and {limits}"
        )
    steppers = {limit: _make_stepper(run, hardware, limit) for limit in limits}
    tasks = {str(limit): stepper for limit, stepper in steppers.items()}
    for stepper in steppers.values():
        stepper.warm_up()
    durations = time_in_turns(tasks, steps, hardware)
    found = {limit: quartiles(durations[str(limit)]) for limit in limits}
    short, long = (found[limit] for limit in sorted(limits))
    return {
        "span": SPAN,
        "step_s": {f"limit {limit}": found[limit].to_json() for limit in limits},
        "ratio": long.median / short.median,
        "ratio_of_least": long.least / short.least,
        "steps": steps,
    }


def _make_stepper(run: RunConfig, hardware: Hardware, limit: int) -> Stepper:
    """The recipe with another span limit; its spans are not trained."""
    model = replace(run.model, span_limit=limit, span_start=SPAN / limit)
    stepper = Stepper(replace(run, model=model), hardware)
    optimizer = stepper.training.optimizer
    for group in optimizer.param_groups:
        if any(name.endswith("span.ratio") for name in group["param_names"]):
            group["base_lr"] = 0.0
    return stepper
