"""Joining the other processes of a launch, taking leave of them, noticing that one is gone."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from sparing.errors import LostError
from sparing.launch import Launch
from sparing.train.distributed import Ranks
from sparing.train.many import Joining, Many
from sparing.train.rendezvous import meeting_place


@contextmanager
def together(launch: Launch, device: torch.device, how: Joining) -> Iterator[Ranks]:
    """Join the other processes of this launch; alone, nothing is joined."""
    if launch.size == 1:
        yield Ranks()
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


def _kind(how: Joining) -> type[Many]:
    if not how.sharded:
        return Many
    # Two seconds of torch's own imports, of no use to those who do not shard.
    from sparing.train.sharding import Sharded

    return Sharded


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
        raise LostError(
            f"{launch.describe()} lost another process ({reason}); the run goes on from its last "
            "checkpoint with --resume, or by itself under torchrun --max-restarts"
        ) from problem
