"""Where the time of a training step goes, kernel by kernel (on a CPU: operator by operator)."""

from typing import Any

from torch.profiler import ProfilerActivity, profile

from sparing.bench.timing import interleaved, spread
from sparing.bench.train import Stepper
from sparing.device import Hardware
from sparing.errors import UserError
from sparing.runs.config import RunConfig

STRETCHES = 3
"""Timed, for a median of them."""
LONGEST_NAME = 90
"""Compilers name kernels after all that is in them."""


def bench_profile(run: RunConfig, hardware: Hardware, steps: int, rows: int) -> dict[str, Any]:
    """Time stretches of `steps` steps, then watch one; the `rows` that take longest are told."""
    if min(steps, rows) < 1:
        raise UserError(f"steps and rows must be at least 1, not {steps} and {rows}")
    stepper = Stepper(run, hardware)
    stepper.warm_up()
    step = spread(interleaved({"step": stepper}, STRETCHES, hardware, stretch=steps)["step"])
    cuda = hardware.device.type == "cuda"
    watched = ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU
    with profile(activities=[watched]) as found:
        for _ in range(steps):
            stepper()
        hardware.synchronize()
    work = [_row(event, steps, cuda=cuda) for event in found.key_averages()]
    # A device's events hold ranges that only name what ran inside them.
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
    """What an event took of one step."""
    spent_us = event.self_device_time_total if cuda else event.self_cpu_time_total
    what = event.key[:LONGEST_NAME]
    return {"what": what, "calls": event.count / steps, "ms": spent_us / 1000 / steps}
