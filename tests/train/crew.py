"""Several processes on this machine, each with its part of one small training."""

import os
import socket
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.multiprocessing as mp

from sparing.launch import Launch

Task = Callable[..., Any]


def crew(task: Task, size: int, *arguments: Any) -> list[Any]:
    """Call `task(launch, *arguments)` in `size` processes; their answers, rank by rank."""
    if size == 1:
        return [task(Launch(), *arguments)]
    # Its server imports torch once for all that are to come.
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["torch"])
    answers: Any = context.SimpleQueue()
    port = free_port()
    members = [
        context.Process(target=_member, args=(answers, port, Launch(rank, size), task, arguments))
        for rank in range(size)
    ]
    for member in members:
        member.start()
    found = dict(answers.get() for _ in members)
    for member in members:
        member.join()
    failures = [f"rank {rank}: {answer}" for rank, (fine, answer) in found.items() if not fine]
    assert not failures, "\n".join(failures)
    return [found[rank][1] for rank in range(size)]


def _member(answers: Any, port: int, launch: Launch, task: Task, arguments: Any) -> None:
    torch.set_num_threads(1)
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": str(launch.rank),
        "WORLD_SIZE": str(launch.size),
    }
    try:
        answers.put((launch.rank, (True, task(launch, *arguments))))
    except BaseException:
        answers.put((launch.rank, (False, traceback.format_exc())))


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
