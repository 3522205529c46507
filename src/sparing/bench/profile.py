"""Profile of a training step by kernel (on a CPU: by operator)."""

from typing import Any

from torch.profiler import ProfilerActivity, profile

from sparing.bench.timing import quartiles, time_in_turns
from sparing.bench.train import Stepper
from sparing.device import Hardware
from sparing.errors import UserError
from sparing.runs.config import RunConfig

STRETCHES = 3
"""Number of timed stretches; the median is reported."""
LONGEST_NAME = 90
"""Compiled kernels have names of any length."""


def bench_profile(run: RunConfig, hardware: Hardware, steps: int, rows: int) -> dict[str, Any]:
    """Time stretches of `steps` steps, then profile one; return the `rows` that take longest."""
    if min(steps, rows) < 1:
        raise UserError(f"steps and rows must be at least 1, not {steps} and {rows}")
    stepper = Stepper(run, hardware)
    stepper.warm_up()
    durations = time_in_turns({"step": stepper}, STRETCHES, hardware, stretch=steps)
    step = quartiles(durations["step"])
    cuda = hardware.device.type == "cuda"
    activity = ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU
    with profile(activities=[activity]) as profiled:
        for _ in range(steps):
            stepper()
        hardware.synchronize()
    work = [_row(event, steps, cuda=cuda) for event in profiled.key_averages()]
    # Events with a # are ranges that only contain others.
    work = [row for row in work if row["ms"] > 0 and "#" not in row["what"]]
    work.sort(key=lambda row: -row["ms"])
    return {
        "step_s": step.to_json(),
        "tokens_per_s": run.train.batch * run.train.segment / step.median,
        "busy_ms": sum(row["ms"] for row in work),
        "peak_bytes": hardware.peak_bytes(),
        "work": work[:rows],
    }


def _row(event: Any, steps: int, *, cuda: bool) -> dict[str, Any]:
    """Calls and time of an event per step."""
    spent_us = event.self_device_time_total if cuda else event.self_cpu_time_total
    what = event.key[:LONGEST_NAME]
    return {"what": what, "calls": event.count / steps, "ms": spent_us / 1000 / steps}
