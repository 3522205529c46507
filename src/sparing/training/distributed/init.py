"""Joining and leaving the process group of a launch, and noticing that a process is lost."""

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from sparing.errors import LostProcessError
from sparing.launch import Launch
from sparing.training.distributed.ddp import DDPWorld
from sparing.training.distributed.world import World, WorldConfig

POLL_S = 0.02


@contextmanager
def init_world(launch: Launch, device: torch.device, config: WorldConfig) -> Iterator[World]:
    """Join the other processes of this launch; a single process joins nothing."""
    if launch.size == 1:
        yield World()
        return
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.set_device(device)
    with _lost_processes(launch):
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if cuda else "gloo",
            store=store_of_start(launch, config.timeout_s),
            rank=launch.rank,
            world_size=launch.size,
            timeout=timedelta(seconds=config.timeout_s),
            device_id=device if cuda else None,
        )
        yield _world_class(config)(launch, device, config)
        # Only after success: with a message in flight, leaving could wait forever.
        leave_group()


def store_of_start(launch: Launch, timeout_s: float) -> Store:
    """A store shared by the processes of this start alone.

    torchrun keeps one store over all restarts, with keys of processes that have died. Rank 0 picks
    a name and sends it to every process that asks for it and acknowledges the reply.
    """
    limit = timedelta(seconds=timeout_s)
    store: Store = next(rendezvous("env://", launch.rank, launch.size, timeout=limit))[0]
    name = uuid.uuid4().hex
    if launch.rank == 0:
        others = range(1, launch.size)
        _wait(lambda: len(_acknowledged(store, name, others)) == len(others), launch, timeout_s)
    else:
        store.set(f"sparing/request/{launch.rank}", name)
        _wait(lambda: bool(store.check([f"sparing/reply/{name}"])), launch, timeout_s)
        name = store.get(f"sparing/reply/{name}").decode()
        store.set(f"sparing/acknowledged/{name}/{launch.rank}", "yes")
    return PrefixStore(f"sparing/{name}", store)


def _wait(ready: Callable[[], bool], launch: Launch, timeout_s: float) -> None:
    give_up_at = time.monotonic() + timeout_s
    while not ready():
        if time.monotonic() > give_up_at:
            raise LostProcessError(
                f"{launch.describe()} did not find the other processes in {timeout_s:g} s"
            )
        time.sleep(POLL_S)


def _acknowledged(store: Store, name: str, ranks: Sequence[int]) -> list[int]:
    """Reply to the latest request of each rank; return the ranks that acknowledged."""
    for rank in ranks:
        if store.check([f"sparing/request/{rank}"]):
            request = store.get(f"sparing/request/{rank}").decode()
            store.set(f"sparing/reply/{request}", name)
    return [rank for rank in ranks if store.check([f"sparing/acknowledged/{name}/{rank}"])]


_left_groups: list[dist.ProcessGroup | None] = []
"""Groups that this process has left."""


def leave_group() -> None:
    """Leave the process group, but keep the object for as long as this process lives.

    Dropping the last reference waits for the group's threads. DDP does that while it holds the
    GIL, which such a thread may need to release a tensor. For the same reason `sparing.__main__`
    ends launched processes without shutting down the interpreter.
    """
    _left_groups.append(dist.group.WORLD)
    dist.destroy_process_group()


def _world_class(config: WorldConfig) -> type[DDPWorld]:
    if not config.sharded:
        return DDPWorld
    # Importing torch's FSDP takes two seconds.
    from sparing.training.distributed.fsdp import FSDPWorld

    return FSDPWorld


@contextmanager
def _lost_processes(launch: Launch) -> Iterator[None]:
    """Turn torch's errors about other processes into a LostProcessError."""
    try:
        yield
    except RuntimeError as problem:
        message = str(problem)
        known = ("gloo", "NCCL", "Socket", "TCPStore", "Connection", "timeout", "timed out")
        if not (isinstance(problem, dist.DistError) or any(word in message for word in known)):
            raise
        timed_out = "imed out" in message or "imeout" in message
        reason = "no answer in time" if timed_out else "it has ended"
        raise LostProcessError(
            f"{launch.describe()} lost another process ({reason}); resume from the last "
            "checkpoint, or let torchrun --max-restarts do so"
        ) from problem
