"""Device, precision, seed, and how much memory there is."""

import ctypes
import os
import platform
import resource
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from sparing import device as memory
from sparing.errors import UserError
from sparing.launch import launch

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


def ram_bytes() -> int:
    """Memory of this machine, all of it."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def is_out_of_memory(problem: Exception) -> bool:
    """Whether an exception means that memory was too small."""
    told = isinstance(problem, MemoryError | torch.OutOfMemoryError)
    return told or any(words in str(problem) for words in TOO_LARGE)


@contextmanager
def limited_to_free_ram() -> Iterator[None]:
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


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Names of two of glibc's `mallopt` parameters; 2^25 is the most it takes for the second."""

Precision = Literal["auto", "float32", "bfloat16", "float16"]


@dataclass(frozen=True, slots=True)
class Hardware:
    """A device and the precision of the matrix work done on it."""

    device: torch.device
    precision: Precision

    def autocast(self) -> AbstractContextManager[Any]:
        """Weights stay float32; matrix products run in the chosen precision."""
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=getattr(torch, self.precision))

    def synchronize(self) -> None:
        """Wait for the device, so that a clock read next is honest."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def forget(self) -> None:
        """Hand memory that nothing uses back to the device, or to the kernel."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        elif hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
            libc.malloc_trim(0)

    def limited_to_free_ram(self) -> AbstractContextManager[None]:
        """On a CPU, take no more memory than there is; GPUs refuse it by themselves."""
        return memory.limited_to_free_ram() if self.device.type == "cpu" else nullcontext()

    def peak_bytes(self) -> int:
        """Most device memory held so far (for a CPU: the process's resident peak)."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def describe(self) -> str:
        """The device's own name."""
        if self.device.type == "cuda":
            return torch.cuda.get_device_name(self.device)
        return f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"


def pick(name: str = "auto", precision: Precision = "auto") -> Hardware:
    """Choose the device: the GPU where there is one, unless told otherwise."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and launch().size > 1:
        name = f"cuda:{launch().local_rank}"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"unknown device {name!r}; use cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"device {name!r} is not supported; use cpu, cuda or cuda:N")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("cuda was asked for, but this machine has no CUDA device; use --device cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"{name} was asked for, but there are {torch.cuda.device_count()} devices")
    if device.type == "cpu":
        _keep_freed_memory()
    elif device.index is not None:
        # Triton launches on the device that is current, whatever its tensors are on.
        torch.cuda.set_device(device)
    return Hardware(device, _settle(precision, device))


def _keep_freed_memory() -> None:
    """Ask glibc not to hand memory back to the kernel after every step, only to fetch it again.

    Thousands of page faults less per training step, about a tenth of its time on 2 cores.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_THRESHOLD, 1 << 25)
        libc.mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)


def _settle(precision: Precision, device: torch.device) -> Precision:
    if precision == "auto":
        return "bfloat16" if device.type == "cuda" else "float32"
    if precision == "float16" and device.type == "cpu":
        # Half-precision kernels are for GPUs; a recipe made for one still runs here.
        return "float32"
    return precision


def seed_everything(seed: int) -> None:
    """Seed torch on every device; nothing else of ours draws from a hidden generator."""
    torch.manual_seed(seed)
