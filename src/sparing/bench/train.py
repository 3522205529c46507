"""The training step compared with its matrix products alone."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import torch

from sparing.bench.bare import Load, bare_tasks
from sparing.bench.report import bytes_per_s
from sparing.bench.timing import Task, quartiles, time_in_turns
from sparing.data.stream import Segment, prefetch
from sparing.data.tokens import Split
from sparing.device import Hardware
from sparing.errors import UserError
from sparing.models.api import size_bytes
from sparing.runs.build import build_training
from sparing.runs.config import RunConfig
from sparing.training.distributed.world import World
from sparing.training.schedule import lr_factor
from sparing.training.step import train_step

WARMUP = 3
"""Least number of steps before the first timed one, for compilers and allocators."""
MAX_SKIPPED = 40
"""Steps without an update during the warm-up after which the benchmark gives up."""
LAPS = 3
"""Steps that are timed together before the products take their turn."""
ROUND = 8
"""Segments of random text, which are repeated."""


class Stepper:
    """A training on random tokens; each call is one step of the training loop."""

    def __init__(self, run: RunConfig, hardware: Hardware, world: World | None = None) -> None:
        world = world or World()
        self.schedule, self.skipped, self._segment = run.schedule, 0, run.train.segment
        self.training = build_training(_fixed_length(run), _text(run), hardware, world)
        self.micro_batches = world.micro_batches(run.train.batch, run.train.micro_batches)
        self.segments: Iterator[Segment] = prefetch(
            self.training.stream.segments(), hardware.device
        )
        self._number = count(1)

    def __call__(self) -> bool:
        """Take one step; return whether the weights were updated."""
        training, number = self.training, next(self._number)
        # The state is carried even where an epoch starts, so that the memory stays full.
        segment = next(self.segments)
        training.optimizer.scale_lr(lr_factor(self.schedule, number, 0.0))
        training.model.before_step(number - 1, 0.0)
        result = train_step(training, segment, self.micro_batches)
        self.skipped += not result.updated
        return result.updated

    def warm_up(self) -> None:
        """Step until the memory is full and the weights have been updated a few times."""
        updates, self.skipped = 0, 0
        while updates <= WARMUP or updates * self._segment < self.training.model.memory_length():
            # The state of a step whose loss is not finite is not carried on.
            updates += self()
            if self.skipped == MAX_SKIPPED:
                raise UserError(f"the loss or its gradients were not finite in {MAX_SKIPPED} steps")
        self.skipped = 0


def bench_train(run: RunConfig, hardware: Hardware, steps: int) -> dict[str, Any]:
    """Time at least `steps` steps and, taking turns, their matrix products."""
    if steps < 1:
        raise UserError(f"steps must be at least 1, not {steps}")
    stepper = Stepper(run, hardware)
    stepper.warm_up()
    if hardware.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(hardware.device)
        stepper()
    peak_bytes = hardware.peak_bytes()
    bare = _bare_tasks(run, hardware)
    turns = math.ceil(steps / LAPS)
    durations = time_in_turns({"step": stepper, **bare}, turns, hardware, stretch=LAPS)
    return {
        **_speed(run, durations.pop("step"), durations),
        "peak_bytes": peak_bytes,
        "state_bytes": size_bytes(stepper.training.state),
        "steps": turns * LAPS,
        "skipped_steps": stepper.skipped,
        "batch": run.train.batch,
        "segment": run.train.segment,
        "micro_batches": run.train.micro_batches,
        "compiled": run.train.compiled and hardware.device.type == "cuda",
        "optimizer": run.optim.name,
    }


def _speed(
    run: RunConfig, step_s: Sequence[float], parts_s: dict[str, list[float]]
) -> dict[str, Any]:
    step, tokens = quartiles(step_s), run.train.batch * run.train.segment
    per_s = tokens / step.median
    figures: dict[str, Any] = {
        "bytes_per_s": bytes_per_s(run, per_s),
        "tokens_per_s": per_s,
        "step_s": step.to_json(),
    }
    if parts_s:
        bare = quartiles([sum(parts) for parts in zip(*parts_s.values(), strict=True)])
        figures["bare_s"] = bare.to_json()
        figures["bare_parts_s"] = {name: quartiles(part).median for name, part in parts_s.items()}
        figures["ratio"] = step.median / bare.median
        figures["ratio_of_least"] = step.least / bare.least
    return figures


def _bare_tasks(run: RunConfig, hardware: Hardware) -> dict[str, Task]:
    """The matrix products of a whole step with all its micro-batches."""
    micro_batches = run.train.micro_batches
    load = Load(run.train.batch // micro_batches, run.train.segment, hardware)
    tasks = bare_tasks(run.family, run.model, load)
    return {name: _repeat(task, micro_batches) for name, task in tasks.items()}


def _repeat(task: Task, times: int) -> Task:
    def repeated() -> None:
        for _ in range(times):
            task()

    return repeated


def _fixed_length(run: RunConfig) -> RunConfig:
    """Segments of one length, as the products are timed for one shape."""
    return replace(run, train=replace(run.train, randomised=False, random_epoch_offset=False))


def _text(run: RunConfig) -> Split:
    t, vocab_size = run.train, run.model.vocab_size
    ids = np.random.default_rng(t.seed).integers(0, vocab_size, t.batch * t.segment * ROUND)
    return Split(ids.astype(np.uint32), size_bytes=ids.size, words=0, start=0)
