"""Device, precision, seed, and available memory."""

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

from sparing.errors import UserError
from sparing.launch import current_launch
from sparing.units import pluralize

Precision = Literal["auto", "float32", "bfloat16", "float16"]

RESERVED_SHARE = 0.05
"""Share of the free memory left to other processes and to the kernel's page tables."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Two parameters of glibc's `mallopt`; the largest value of the second is 2^25."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """A device and the precision of its matrix products."""

    device: torch.device
    precision: Precision

    def autocast(self) -> AbstractContextManager[Any]:
        """Run matrix products in the chosen precision; weights stay float32."""
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=getattr(torch, self.precision))

    def synchronize(self) -> None:
        """Wait until the device has finished, so that a clock read next includes all its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def empty_cache(self) -> None:
        """Return unused cached memory to the GPU or, on a CPU, to the kernel."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        elif hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
            libc.malloc_trim(0)

    def limit_to_free_ram(self) -> AbstractContextManager[None]:
        """On a CPU, make allocations beyond the free memory fail, as they do on a GPU anyway."""
        return limit_to_free_ram() if self.device.type == "cpu" else nullcontext()

    def peak_bytes(self) -> int:
        """Peak of the device memory in use so far; on a CPU, of the process's resident memory."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def describe(self) -> str:
        """Return the device's name."""
        if self.device.type == "cuda":
            return torch.cuda.get_device_name(self.device)
        threads = pluralize(torch.get_num_threads(), "thread")
        return f"{platform.processor() or platform.machine()}, {threads}"


def pick(name: str = "auto", precision: Precision = "auto") -> Hardware:
    """Choose the device; `auto` is a GPU if there is one, else the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and current_launch().size > 1:
        name = f"cuda:{current_launch().local_rank}"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"unknown device {name!r}; use cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"device {name!r} is not supported; use cpu, cuda or cuda:N")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("this machine has no CUDA device; use device cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(
            f"there is no {name}: this machine has "
            f"{pluralize(torch.cuda.device_count(), 'CUDA device')}, "
            "counted from cuda:0"
        )
    if device.type == "cpu":
        _keep_freed_memory()
    elif device.index is not None:
        # Triton launches kernels on the current device, whatever device the tensors are on.
        torch.cuda.set_device(device)
    return Hardware(device, _resolve_precision(precision, device))


def _resolve_precision(precision: Precision, device: torch.device) -> Precision:
    if precision == "auto":
        return "bfloat16" if device.type == "cuda" else "float32"
    if precision == "float16" and device.type == "cpu":
        # Half-precision kernels are for GPUs; a recipe made for one should still run here.
        return "float32"
    return precision


def _keep_freed_memory() -> None:
    """Tell glibc not to return memory to the kernel after every step only to ask for it again.

    Saves thousands of page faults per training step, about a tenth of its time on 2 cores.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_THRESHOLD, 1 << 25)
        libc.mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)


def seed_everything(seed: int) -> None:
    """Seed torch on every device; all our other random numbers come from explicit generators."""
    torch.manual_seed(seed)


def ram_bytes() -> int:
    """Physical memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def free_ram_bytes(proc: Path = Path("/proc")) -> int:
    """Memory that is available without swapping; all of it, if the system does not say."""
    try:
        return _read_sizes(proc / "meminfo")["MemAvailable"]
    except (OSError, KeyError):
        return ram_bytes()


@contextmanager
def limit_to_free_ram() -> Iterator[None]:
    """Make allocations fail that exceed the memory free now.

    Without a limit, Linux grants more memory than the machine has and later kills the process
    that uses it, without a message.
    """
    before, hard_limit = resource.getrlimit(resource.RLIMIT_DATA)
    limit = _used_and_free_bytes()
    if limit is not None and (before == resource.RLIM_INFINITY or limit < before):
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard_limit))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, hard_limit))


def _used_and_free_bytes(proc: Path = Path("/proc")) -> int | None:
    """Memory this process has and could still get; None if the system does not say."""
    try:
        free, own = _read_sizes(proc / "meminfo"), _read_sizes(proc / "self" / "status")
        return own["VmData"] + int((1 - RESERVED_SHARE) * (free["MemAvailable"] + free["SwapFree"]))
    except (OSError, KeyError):
        return None


def _read_sizes(path: Path) -> dict[str, int]:
    """Parse lines of the form `MemFree:  1234 kB`; sizes in bytes."""
    words = [line.replace(":", " ").split() for line in path.read_text().splitlines()]
    return {line[0]: 1024 * int(line[1]) for line in words if line[2:] == ["kB"]}
