"""Where the processes of one start find each other, and not what an earlier start has left behind.

torchrun keeps one store of addresses over all its restarts (torch 2.13 does not tell them apart),
and a process that connects to one of its dead predecessors waits until it times out.
"""

import time
import uuid
from collections.abc import Callable, Sequence
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from sparing.errors import LostError
from sparing.launch import Launch

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
            raise LostError(f"{launch.describe()} did not find the others in {timeout_s:g} s")
        time.sleep(PAUSE_S)


def _hearing(store: Store, name: str, ranks: Sequence[int]) -> list[int]:
    """Answer whoever asked last as one of `ranks`; those who were alive to hear."""
    for rank in ranks:
        if store.check([f"sparing/asks/{rank}"]):
            asker = store.get(f"sparing/asks/{rank}").decode()
            store.set(f"sparing/told/{asker}", name)
    return [rank for rank in ranks if store.check([f"sparing/heard/{name}/{rank}"])]
