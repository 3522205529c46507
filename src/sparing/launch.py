"""How this process was started: alone, or as one of several by torchrun.

torchrun, or SLURM's `srun` with the same variables set, describes it in the environment.
"""

import json
import os
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sparing.errors import UserError

PROCESSES = "sparing_processes"
"""Where an error file of torchrun says how many processes refused; others leave it out."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Position of this process among those of a distributed run."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Rank among the processes of this machine; it selects the GPU."""
    nodes: int = 1
    id: str | None = None
    """The same for every process of a launch, restarted ones included; None if there is no launch
    or it has no common name."""

    def describe(self) -> str:
        """Return the rank in words."""
        return f"rank {self.rank} of {self.size}"


def is_launched() -> bool:
    """Whether torchrun or a similar launcher started this process."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def current_launch() -> Launch:
    """Return the launch that the environment variables describe."""
    if not is_launched():
        return Launch()
    return Launch(
        rank=_read_int("RANK", 0),
        size=_read_int("WORLD_SIZE", 1),
        local_rank=_read_int("LOCAL_RANK", 0),
        nodes=_read_int("GROUP_WORLD_SIZE", 1),
        id=_launch_id(),
    )


def _launch_id() -> str | None:
    """The name given by --rdzv-id, or else one made of the launcher's process.

    The launcher outlives the processes it restarts. With several machines there are several
    launchers, so only a given name is common to all of them.
    """
    named = os.environ.get("TORCHELASTIC_RUN_ID")
    if named != "none":
        return named
    if _read_int("GROUP_WORLD_SIZE", 1) > 1:
        return None
    return f"{socket.gethostname()}:{os.getppid()}:{process_start_ticks(os.getppid())}"


def process_start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if the system does not say."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def seconds_since_start(pid: int) -> float | None:
    """Seconds since a process started; None if the system does not say."""
    ticks = process_start_ticks(pid)
    if ticks is None or not hasattr(time, "CLOCK_BOOTTIME"):
        return None
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def launched_at() -> datetime:
    """The time to name a run after: now, or when the launcher started, the same for all ranks."""
    if not is_torchrun():
        return datetime.now(UTC)
    return datetime.now(UTC) - timedelta(seconds=seconds_since_start(os.getppid()) or 0)


def is_torchrun() -> bool:
    """Whether torchrun started this process; it watches it, and may restart it."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def note_refusal(message: str) -> None:
    """Report an error of the user to torchrun, which restarts a failed command whatever failed.

    It quotes the file at its end; restarted processes find it by `earlier_refusal`.
    """
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        quoted = {"message": message, "extraInfo": {"timestamp": str(int(time.time()))}}
        refused = {"message": quoted, PROCESSES: os.environ.get("WORLD_SIZE")}
        with suppress(OSError):
            Path(path).write_text(json.dumps(refused), encoding="utf-8")


def earlier_refusal() -> str | None:
    """The user error that ended an earlier start of this command with as many processes.

    torchrun keeps the errors of a launch as `attempt_N/LOCAL_RANK/error.json` of one folder.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    launch_folder = Path(path or "").parent.parent.parent
    for file in launch_folder.glob("attempt_*/*/error.json") if path else ():
        with suppress(OSError, ValueError, TypeError, KeyError):
            found = json.loads(file.read_text(encoding="utf-8"))
            if found[PROCESSES] == os.environ.get("WORLD_SIZE"):
                return str(found["message"]["message"])
    return None


def _read_int(name: str, default: int) -> int:
    given = os.environ.get(name, str(default))
    try:
        return int(given)
    except ValueError:
        raise UserError(f"{name} must be a whole number, not {given!r}; torchrun sets it") from None
