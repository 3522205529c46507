"""The whole training step against its bare matrix work, in turns."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import torch

from sparing.bench.bare import Load, bare_tasks
from sparing.bench.report import bytes_per_s
from sparing.bench.timing import Task, interleaved, spread
from sparing.data.stream import Segment, prefetch
from sparing.data.tokens import Split
from sparing.device import Hardware
from sparing.errors import UserError
from sparing.models.api import size_bytes
from sparing.runs.build import build_training
from sparing.runs.config import RunConfig
from sparing.train.distributed.world import World
from sparing.train.loop import backward, update
from sparing.train.schedule import factor

WARMUP = 3
"""Steps before the first measured one, at least: compilers and allocators settle."""
PATIENCE = 40
"""Steps after which a loss that is still not finite, or a memory that still grows, is an error."""
LAPS = 3
"""Steps measured as one before it is the products' turn."""
ROUND = 8
"""Segments of random text, read again and again."""


class Stepper:
    """A training run on random tokens; each call is one step of the loop."""

    def __init__(self, run: RunConfig, hardware: Hardware, world: World | None = None) -> None:
        """One process alone, or one of several `world`."""
        world = world or World()
        self.schedule, self.skipped = run.schedule, 0
        self.training = build_training(_evenly(run), _text(run), hardware, world)
        self.pieces = world.micro_batches(run.train.batch, run.train.micro_batches)
        self.segments: Iterator[Segment] = prefetch(
            self.training.stream.segments(), hardware.device
        )
        self._number = count(1)

    def __call__(self) -> bool:
        """The body of `train.loop.fit` without its books; whether the update was taken."""
        run, segment = self.training, next(self.segments)
        # The state is carried even where the text starts anew: memory stays full.
        number = next(self._number)
        run.optimizer.scale_lr(factor(self.schedule, number, 0.0))
        run.model.before_step(number - 1, 0.0)
        nats, norm, state = backward(run, segment, self.pieces)
        sound = update(run, nats, norm)
        if math.isfinite(nats):
            run.state = state
        run.scale.after_step(finite=sound)
        self.skipped += not sound
        return sound

    def warm_up(self) -> None:
        """Step until memory is full and updates are taken."""
        for step in range(PATIENCE):
            before = size_bytes(self.training.state)
            sound = self()
            if step >= WARMUP and sound and size_bytes(self.training.state) == before:
                self.skipped = 0
                return
        raise UserError(f"the loss is not finite or memory not full after {PATIENCE} steps")


def bench_train(run: RunConfig, hardware: Hardware, steps: int) -> dict[str, Any]:
    """Time at least `steps` steps and, in turn with them, their products."""
    if steps < 1:
        raise UserError(f"steps must be at least 1, not {steps}")
    stepper = Stepper(run, hardware)
    stepper.warm_up()
    if hardware.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(hardware.device)
        stepper()
    peak_bytes = hardware.peak_bytes()
    bare = _bare(run, hardware)
    turns = math.ceil(steps / LAPS)
    durations = interleaved({"step": stepper, **bare}, turns, hardware, stretch=LAPS)
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
    whole, tokens = spread(step_s), run.train.batch * run.train.segment
    per_s = tokens / whole.median
    figures: dict[str, Any] = {
        "bytes_per_s": bytes_per_s(run, per_s),
        "tokens_per_s": per_s,
        "step_s": whole.to_json(),
    }
    if parts_s:
        bare = spread([sum(parts) for parts in zip(*parts_s.values(), strict=True)])
        figures["bare_s"] = bare.to_json()
        figures["bare_parts_s"] = {name: spread(part).median for name, part in parts_s.items()}
        figures["ratio"] = whole.median / bare.median
        figures["ratio_of_least"] = whole.least / bare.least
    return figures


def _bare(run: RunConfig, hardware: Hardware) -> dict[str, Task]:
    """The products of a whole step, which reads its batch in `micro_batches` pieces."""
    pieces = run.train.micro_batches
    load = Load(run.train.batch // pieces, run.train.segment, hardware)
    tasks = bare_tasks(run.family, run.model, load)
    return {name: _repeated(task, pieces) for name, task in tasks.items()}


def _repeated(task: Task, times: int) -> Task:
    def run() -> None:
        for _ in range(times):
            task()

    return run


def _evenly(run: RunConfig) -> RunConfig:
    """Segments of one length, for the products have one shape."""
    return replace(run, train=replace(run.train, randomised=False, random_epoch_offset=False))


def _text(run: RunConfig) -> Split:
    t, vocab_size = run.train, run.model.vocab_size
    ids = np.random.default_rng(t.seed).integers(0, vocab_size, t.batch * t.segment * ROUND)
    return Split(ids.astype(np.uint32), size_bytes=ids.size, words=0, start=0)
