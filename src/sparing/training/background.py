"""Checkpoints written in the background, from copies in host memory, while training goes on."""

from collections.abc import Callable, Mapping
from threading import Thread

import torch
from torch import Tensor

from sparing.training.checkpoint import Checkpoint

Write = Callable[[str, Checkpoint], None]


class BackgroundWriter:
    """Calls `write` in a thread, with one checkpoint at a time, in the order of the calls.

    `begin` is called before, here, so that the disk shows what is under way from now on. What a
    call of `write` raises is raised by the next `save`, `wait` or `check`.
    """

    def __init__(self, write: Write, begin: Callable[[str], object] = lambda name: None) -> None:
        self._write, self._begin = write, begin
        self._thread: Thread | None = None
        self._problem: BaseException | None = None

    def save(self, name: str, checkpoint: Checkpoint) -> None:
        """Copy a checkpoint and begin to write it. Until the one before is written, this waits."""
        self.wait()
        self._begin(name)
        copied, arrived = copy_to_host(checkpoint)

        def write() -> None:
            try:
                arrived()
                self._write(name, copied)
            except BaseException as problem:
                self._problem = problem

        # Not a daemon: a program that ends waits for it.
        self._thread = Thread(target=write, name=f"checkpoint {name}")
        self._thread.start()

    def wait(self) -> None:
        """Wait until nothing is being written."""
        self.join()
        self._raise()

    def check(self) -> None:
        """Raise what a write has failed with, without waiting for one that is under way."""
        if self._thread is not None and not self._thread.is_alive():
            self.wait()

    def join(self) -> None:
        """Wait like `wait`, but keep what a write has failed with."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _raise(self) -> None:
        problem, self._problem = self._problem, None
        if problem is not None:
            raise problem


def copy_to_host(checkpoint: Checkpoint) -> tuple[Checkpoint, Callable[[], None]]:
    """Copy the tensors of a checkpoint, which later steps change; also returns what to wait for.

    From a GPU the copies go to pinned memory and are queued behind the work that is queued
    already, so that neither the host nor a later kernel's result has to wait for them.
    """
    devices: set[torch.device] = set()

    def copied(tensor: Tensor) -> Tensor:
        if not tensor.is_cuda:
            return tensor.detach().clone(memory_format=torch.contiguous_format)
        devices.add(tensor.device)
        return tensor.detach().contiguous().to("cpu", non_blocking=True)

    tensors: Mapping[str, Mapping[str, Tensor]] = {
        stem: {name: copied(tensor) for name, tensor in group.items()}
        for stem, group in checkpoint.tensors.items()
    }
    events = [torch.cuda.current_stream(device).record_event() for device in devices]

    def wait() -> None:
        for event in events:
            event.synchronize()

    settings, version = checkpoint.settings, checkpoint.version
    return Checkpoint(tensors, dict(checkpoint.cursor), version, settings), wait
