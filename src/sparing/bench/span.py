"""What an unused limit costs: short spans under a long limit against the same under a short one."""

from dataclasses import replace
from typing import Any

from sparing.bench.timing import quartiles, time_in_turns
from sparing.bench.train import Stepper
from sparing.device import Hardware
from sparing.errors import UserError
from sparing.runs.config import RunConfig

SPAN = 32
"""Length at which all spans are held."""


def bench_span(
    run: RunConfig, hardware: Hardware, limits: tuple[int, int], steps: int
) -> dict[str, Any]:
    """Time training steps under either limit in turns, all spans held at the same length."""
    if run.family != "adaptive_span":
        raise UserError(f"recipe {run.recipe} is a {run.family}; name one of family adaptive_span")
    if steps < 1 or min(limits) <= SPAN or limits[0] == limits[1]:
        raise UserError(f"need at least one step, and two limits above {SPAN}, not {limits}")
    steppers = {limit: _stepper(run, hardware, limit) for limit in limits}
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


def _stepper(run: RunConfig, hardware: Hardware, limit: int) -> Stepper:
    """The recipe under a limit of its own; its spans neither grow nor shrink."""
    model = replace(run.model, span_limit=limit, span_start=SPAN / limit)
    stepper = Stepper(replace(run, model=model), hardware)
    optimizer = stepper.training.optimizer
    for group in optimizer.param_groups:
        if any(name.endswith("span.ratio") for name in group["param_names"]):
            group["base_lr"] = 0.0
    return stepper
