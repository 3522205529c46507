"""WorldConfig and leaving the process group of a launch, and noticing that a process is gone."""

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
from sparing.train.distributed.ddp import DDPWorld, WorldConfig
from sparing.train.distributed.world import World

PAUSE_S = 0.02


def meeting_place(launch: Launch, timeout_s: float) -> Store:
    """A store that only the processes of this start write to."""
    limit = timedelta(seconds=timeout_s)
    store: Store = next(rendezvous("env://", launch.rank, launch.size, timeout=limit))[0]
    name = uuid.uuid4().hex
    if launch.rank == 0:
        others = range(1, launch.size)
        _wait(lambda: len(_hearing(store, name, others)) == len(others), launch, timeout_s)
    else:
        store.set(f"sparing/asks/{launch.rank}", name)
        _wait(lambda: bool(store.check([f"sparing/told/{name}"])), launch, timeout_s)
        name = store.get(f"sparing/told/{name}").decode()
        store.set(f"sparing/heard/{name}/{launch.rank}", "yes")
    return PrefixStore(f"sparing/{name}", store)


def _wait(ready: Callable[[], bool], launch: Launch, timeout_s: float) -> None:
    give_up_at = time.monotonic() + timeout_s
    while not ready():
        if time.monotonic() > give_up_at:
            raise LostProcessError(
                f"{launch.describe()} did not find the others in {timeout_s:g} s"
            )
        time.sleep(PAUSE_S)


def _hearing(store: Store, name: str, world: Sequence[int]) -> list[int]:
    """Answer whoever asked last as one of `world`; those who were alive to hear."""
    for rank in world:
        if store.check([f"sparing/asks/{rank}"]):
            asker = store.get(f"sparing/asks/{rank}").decode()
            store.set(f"sparing/told/{asker}", name)
    return [rank for rank in world if store.check([f"sparing/heard/{name}/{rank}"])]


@contextmanager
def init_world(launch: Launch, device: torch.device, how: WorldConfig) -> Iterator[World]:
    """Join the other processes of this launch; alone, nothing is joined."""
    if launch.size == 1:
        yield World()
        return
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.set_device(device)
    with _noticing_loss(launch):
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if cuda else "gloo",
            store=meeting_place(launch, how.timeout_s),
            rank=launch.rank,
            world_size=launch.size,
            timeout=timedelta(seconds=how.timeout_s),
            device_id=device if cuda else None,
        )
        yield _kind(how)(launch, device, how)
        # Only after a good end: with a message under way, taking leave could wait for ever.
        leave()


_left: list[dist.ProcessGroup | None] = []
"""Groups that this process has left."""


def leave() -> None:
    """Take leave of the others, but keep the group for as long as this process lives.

    Whoever drops a group last waits for its threads: DDP with the interpreter's lock held, which
    such a thread may need to let go of a tensor. For the same reason `sparing.__main__` ends
    launched processes without taking the interpreter down.
    """
    _left.append(dist.group.WORLD)
    dist.destroy_process_group()


def _kind(how: WorldConfig) -> type[DDPWorld]:
    if not how.sharded:
        return DDPWorld
    # Two seconds of torch's own imports, of no use to those who do not shard.
    from sparing.train.distributed.fsdp import FSDPWorld

    return FSDPWorld


@contextmanager
def _noticing_loss(launch: Launch) -> Iterator[None]:
    try:
        yield
    except RuntimeError as problem:
        words = str(problem)
        known = ("gloo", "NCCL", "Socket", "TCPStore", "Connection", "timeout", "timed out")
        if not (isinstance(problem, dist.DistError) or any(word in words for word in known)):
            raise
        reason = "no answer in time" if "imed out" in words or "imeout" in words else "it is gone"
        raise LostProcessError(
            f"{launch.describe()} lost another process ({reason}); the run goes on from its last "
            "checkpoint with --resume, or by itself under torchrun --max-restarts"
        ) from problem
