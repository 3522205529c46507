"""A training step of several processes against the same step of this process alone, in turns.

Without torchrun it is a world of one: what joining costs when there is nobody to wait for.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from sparing.bench.timing import interleaved, spread
from sparing.bench.train import LAPS, Stepper
from sparing.device import Hardware
from sparing.errors import UserError
from sparing.launch import current_launch
from sparing.runs.config import RunConfig
from sparing.train.distributed.ddp import DDPWorld, WorldConfig
from sparing.train.distributed.init import init_world, leave
from sparing.train.distributed.world import World


def bench_distributed(
    run: RunConfig, hardware: Hardware, steps: int, *, sharded: bool = False
) -> dict[str, Any]:
    """Time at least `steps` steps of either kind, on as many lanes per process."""
    if steps < 1:
        raise UserError(f"steps must be at least 1, not {steps}")
    how = WorldConfig(reduction=run.train.reduction, sharded=sharded)
    with _world(hardware, how) as world:
        if run.train.batch % world.size:
            raise UserError(f"train.batch {run.train.batch} must be a multiple of {world.size}")
        own = replace(run, train=replace(run.train, batch=run.train.batch // world.size))
        steppers = {"alone": Stepper(own, hardware), "init_world": Stepper(run, hardware, world)}
        for stepper in steppers.values():
            stepper.warm_up()
        turns = math.ceil(steps / LAPS)
        durations = interleaved(steppers, turns, hardware, laps=LAPS)
    alone, joint = (spread(durations[name]) for name in steppers)
    weights = steppers["alone"].training.model.parameters()
    return {
        "overhead": joint.median / alone.median - 1,
        "overhead_of_least": joint.least / alone.least - 1,
        "alone_s": alone.to_json(),
        "together_s": joint.to_json(),
        "tokens_per_s": run.train.batch * run.train.segment / joint.median,
        "gradient_bytes": sum(weight.nbytes for weight in weights),
        "sharded": sharded,
        "batch": run.train.batch,
        "segment": run.train.segment,
        "steps": turns * LAPS,
    }


@contextmanager
def _world(hardware: Hardware, how: WorldConfig) -> Iterator[World]:
    """The processes of this launch, joined even where there is only one."""
    if current_launch().size > 1:
        with init_world(current_launch(), hardware.device, how) as world:
            yield world
        return
    if how.sharded:
        raise UserError("--shard needs several processes; start them with torchrun")
    backend = "nccl" if hardware.device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    try:
        yield DDPWorld(current_launch(), hardware.device, how)
    finally:
        leave()
