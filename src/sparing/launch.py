"""How this process was started: alone, or as one of several by torchrun.

torchrun (and SLURM's `srun` with the same variables) tells it in the environment.
"""

import os
import socket
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sparing.errors import UserError


@dataclass(frozen=True, slots=True)
class Launch:
    """This process's place among those that train together."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Place among the processes of this machine: it picks the GPU."""
    nodes: int = 1
    id: str | None = None
    """The same for every process of a launch, restarted ones too; None where there is none such."""

    def describe(self) -> str:
        """The place in words."""
        return f"rank {self.rank} of {self.size}"


def launched() -> bool:
    """Whether a launcher started this process."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def launch() -> Launch:
    """Read the environment."""
    if not launched():
        return Launch()
    return Launch(
        rank=_number("RANK", 0),
        size=_number("WORLD_SIZE", 1),
        local_rank=_number("LOCAL_RANK", 0),
        nodes=_number("GROUP_WORLD_SIZE", 1),
        id=_id(),
    )


def _id() -> str | None:
    """The name given by --rdzv-id; else the launching process, which outlives those it restarts.

    Several machines have several of these, and so nothing in common but a name.
    """
    named = os.environ.get("TORCHELASTIC_RUN_ID")
    if named != "none":
        return named
    if _number("GROUP_WORLD_SIZE", 1) > 1:
        return None
    return f"{socket.gethostname()}:{os.getppid()}:{started(os.getppid())}"


def started(pid: int) -> int | None:
    """When a process began, in ticks since the machine did; None where the system does not tell."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def age_s(pid: int) -> float | None:
    """Seconds since a process began."""
    ticks = started(pid)
    if ticks is None or not hasattr(time, "CLOCK_BOOTTIME"):
        return None
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def launched_at() -> datetime:
    """The time to name a run after: for all processes of a launcher the one at which it began."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return datetime.now(UTC)
    return datetime.now(UTC) - timedelta(seconds=age_s(os.getppid()) or 0)


def _number(name: str, otherwise: int) -> int:
    given = os.environ.get(name, str(otherwise))
    try:
        return int(given)
    except ValueError:
        raise UserError(f"{name} must be a whole number, not {given!r}; torchrun sets it") from None
