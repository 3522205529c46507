"""Messages printed before the first step, such as that steps are slow on this CPU."""

import time
from collections.abc import Iterator

import torch

from sparing.device import Hardware
from sparing.training.config import TrainConfig
from sparing.training.loop import budget_used
from sparing.training.state import Training
from sparing.training.stopping import Clock
from sparing.units import format_duration, pluralize

SLOW_S = 20.0
"""A step that takes longer is announced: until its end there is nothing to see."""
WIDTH, PRODUCTS = 512, 8
"""Size and number of the matrix products that are timed, in about 20 ms; the fastest counts,
because other processes may use the cores as well."""


def remarks(training: Training, config: TrainConfig, *, resumed: bool) -> Iterator[str]:
    """Yield the lines to print before training, if there is anything unexpected to say."""
    counters = training.counters
    clock = Clock(counters.elapsed_s + training.head_start_s)
    if resumed and (training.model.converged or budget_used(training, config, clock) >= 1):
        yield _finished(training, config, clock.elapsed_s())
        return
    if resumed and counters.pass_share is None:
        yield (
            f"second pass from step {counters.step:,}: its weights are kept, optimizer state and "
            "schedule start anew"
        )
    parameters = list(training.model.parameters())
    trained = sum(each.numel() for each in parameters if each.requires_grad)
    total = sum(each.numel() for each in parameters)
    # A super-net chooses in each step.
    if trained < total and not training.model.single_process:
        yield f"training {trained:,} of {total:,} parameters"
    if training.hardware.device.type == "cpu":
        seconds = estimate_step_s(training, config)
        if seconds > SLOW_S:
            yield (
                f"a step takes {format_duration(seconds / 60)} or more on this CPU (estimated); "
                "choose a GPU, or a smaller model, train.batch or train.segment"
            )


def _finished(training: Training, config: TrainConfig, elapsed_s: float) -> str:
    done = f"the run is finished: {pluralize(training.counters.step, 'step')}"
    if training.model.converged:
        return f"{done}, and its search has converged"
    units = ("steps", "epochs", "minutes")
    totals = {unit: total for unit in units if (total := getattr(config, unit)) is not None}
    used = {"steps": training.counters.step, "minutes": elapsed_s / 60}
    # The budget that is used up; epochs if none of the others is.
    unit = max(totals, key=lambda each: used.get(each, totals[each]) / totals[each])
    return f"{done}; to train on, set a larger total, such as train.{unit}={2 * totals[unit]:g}"


def estimate_step_s(training: Training, config: TrainConfig) -> float:
    """Seconds that the matrix products of a step take, two thirds of them backward."""
    tokens = len(training.world.lanes(config.batch)) * config.segment
    flops = 3 * tokens * training.model.flops_per_token()
    return flops / matmul_flops_per_s(training.hardware)


def matmul_flops_per_s(hardware: Hardware) -> float:
    """Measure how fast this CPU multiplies matrices at best; draws no random numbers."""
    matrix, times_s = torch.ones(WIDTH, WIDTH), []
    with hardware.autocast():
        for _ in range(PRODUCTS):
            started_at = time.perf_counter()
            matrix @ matrix
            times_s.append(time.perf_counter() - started_at)
    return 2 * WIDTH**3 / min(times_s)
