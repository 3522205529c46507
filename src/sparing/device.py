"""Where the numbers live and how many bits they get."""

import ctypes
import platform
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch

from sparing import memory
from sparing.errors import UserError
from sparing.launch import launch

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

    def confined(self) -> AbstractContextManager[None]:
        """On a CPU, take no more memory than there is; GPUs refuse it by themselves."""
        return memory.confined() if self.device.type == "cpu" else nullcontext()

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
