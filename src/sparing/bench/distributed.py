"""A training step of several processes compared with the same step of a single process.

Without torchrun it is a process group of one, which measures the overhead of DDP itself.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from sparing.bench.timing import quartiles, time_in_turns
from sparing.bench.train import LAPS, Stepper
from sparing.device import Hardware
from sparing.errors import UserError
from sparing.launch import current_launch
from sparing.runs.config import RunConfig
from sparing.training.distributed.ddp import DDPWorld
from sparing.training.distributed.init import init_world, leave_group
from sparing.training.distributed.world import World, WorldConfig


def bench_distributed(
    run: RunConfig, hardware: Hardware, steps: int, *, sharded: bool = False
) -> dict[str, Any]:
    """Time at least `steps` steps of each kind, with the same number of lanes per process."""
    if steps < 1:
        raise UserError(f"steps must be at least 1, not {steps}")
    config = WorldConfig(reduction=run.train.reduction, sharded=sharded)
    with _world(hardware, config) as world:
        if run.train.batch % world.size:
            raise UserError(f"train.batch {run.train.batch} must be a multiple of {world.size}")
        local = replace(run, train=replace(run.train, batch=run.train.batch // world.size))
        steppers = {"single": Stepper(local, hardware), "joint": Stepper(run, hardware, world)}
        for stepper in steppers.values():
            stepper.warm_up()
        turns = math.ceil(steps / LAPS)
        durations = time_in_turns(steppers, turns, hardware, laps=LAPS)
    single, joint = (quartiles(durations[name]) for name in steppers)
    weights = steppers["single"].training.model.parameters()
    return {
        "overhead": joint.median / single.median - 1,
        "overhead_of_least": joint.least / single.least - 1,
        "alone_s": single.to_json(),
        "together_s": joint.to_json(),
        "tokens_per_s": run.train.batch * run.train.segment / joint.median,
        "gradient_bytes": sum(weight.nbytes for weight in weights),
        "sharded": sharded,
        "batch": run.train.batch,
        "segment": run.train.segment,
        "steps": turns * LAPS,
    }


@contextmanager
def _world(hardware: Hardware, config: WorldConfig) -> Iterator[World]:
    """The processes of this launch, in a process group even if there is only one."""
    if current_launch().size > 1:
        with init_world(current_launch(), hardware.device, config) as world:
            yield world
        return
    if config.sharded:
        raise UserError("--shard needs several processes; start them with torchrun")
    backend = "nccl" if hardware.device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    try:
        yield DDPWorld(current_launch(), hardware.device, config)
    finally:
        leave_group()
