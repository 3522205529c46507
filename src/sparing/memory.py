"""Memory of the machine: how much there is, and what asking for more looks like."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

TOO_LARGE = (
    "can't allocate memory",
    "Storage size calculation overflowed",
    "out of memory",
    "bad_alloc",
    # All that oneDNN has to say when its LSTM finds no room.
    "could not create a primitive",
)
"""What torch says of tensors that no memory holds; its exceptions are those of any fault."""
SPARE = 0.05
"""Share of what is free that others, and the kernel for our pages, may come to need."""


def machine_bytes() -> int:
    """Memory of this machine, all of it."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def is_shortage(problem: Exception) -> bool:
    """Whether an exception means that memory was too small."""
    told = isinstance(problem, MemoryError | torch.OutOfMemoryError)
    return told or any(words in str(problem) for words in TOO_LARGE)


@contextmanager
def confined() -> Iterator[None]:
    """Let this process have no more than is free now: beyond that, asking for memory fails.

    Linux promises more than there is and kills whoever takes it, without a word.
    """
    before, most = resource.getrlimit(resource.RLIMIT_DATA)
    limit = _held_and_free_bytes()
    if limit is not None and (before == resource.RLIM_INFINITY or limit < before):
        resource.setrlimit(resource.RLIMIT_DATA, (limit, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, most))


def _held_and_free_bytes(proc: Path = Path("/proc")) -> int | None:
    """None where the system does not tell."""
    try:
        free, own = _sizes(proc / "meminfo"), _sizes(proc / "self" / "status")
        return own["VmData"] + int((1 - SPARE) * (free["MemAvailable"] + free["SwapFree"]))
    except (OSError, KeyError):
        return None


def _sizes(path: Path) -> dict[str, int]:
    """The lines of the form `MemFree:  1234 kB`, in bytes."""
    words = [line.replace(":", " ").split() for line in path.read_text().splitlines()]
    return {line[0]: 1024 * int(line[1]) for line in words if line[2:] == ["kB"]}
