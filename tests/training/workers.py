"""Several local processes that run one task after the other."""

import os
import socket
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tests.training.toy import CPU

from sparing.launch import Launch
from sparing.training.distributed.ddp import DDPWorld
from sparing.training.distributed.fsdp import FSDPWorld
from sparing.training.distributed.world import World, WorldConfig

Task = Callable[..., Any]


class Workers:
    """`size` processes, started by the first call."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._members: list[tuple[Any, Any]] = []

    def __call__(self, task: Task, *arguments: Any) -> list[Any]:
        """Call `task(launch, *arguments)` in every process; return their results by rank."""
        if not self._members:
            self._start()
        for _, pipe in self._members:
            pipe.send((task, arguments))
        answers = [pipe.recv() for _, pipe in self._members]
        failures = [f"rank {rank}: {why}" for rank, (fine, why) in enumerate(answers) if not fine]
        if failures:
            self.close()
        assert not failures, "\n".join(failures)
        return [answer for _, answer in answers]

    def close(self) -> None:
        """End the processes."""
        for process, pipe in self._members:
            pipe.close()
            process.join(5)
            process.kill()
        self._members = []

    def _start(self) -> None:
        # The fork server imports torch once for all processes.
        context = mp.get_context("forkserver")
        context.set_forkserver_preload(["torch"])
        port = free_port()
        for rank in range(self.size):
            mine, theirs = context.Pipe()
            launch = Launch(rank, self.size)
            process = context.Process(target=_serve, args=(theirs, port, launch), daemon=True)
            process.start()
            theirs.close()
            self._members.append((process, mine))


def _serve(pipe: Any, port: int, launch: Launch) -> None:
    torch.set_num_threads(1)
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": str(launch.rank),
        "WORLD_SIZE": str(launch.size),
    }
    while True:
        try:
            task, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((True, task(launch, *arguments)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))


def world_of(launch: Launch, **settings: Any) -> World:
    """The world of this process; joins the process group if it has not yet."""
    if launch.size == 1:
        return World()
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    config = WorldConfig(**settings)
    return (FSDPWorld if config.sharded else DDPWorld)(launch, CPU.device, config)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
