"""Where a run's numbers come from: code, versions, machine, command."""

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from sparing.device import Hardware
from sparing.launch import current_launch


def provenance(hardware: Hardware, seed: int) -> dict[str, Any]:
    """A record to lay beside the results."""
    return {
        "commit": commit(),
        "versions": {name: _version(name) for name in ("sparing", "torch", "numpy", "triton")},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": hardware.describe(),
        "precision": hardware.precision,
        "command": ["sparing", *sys.argv[1:]],
        "seed": seed,
        "processes": current_launch().size,
        "launch": current_launch().id,
        "started_at": now(),
    }


def now() -> str:
    """The time, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def commit() -> str | None:
    """The commit of the code that runs, with `+changes` where files differ from it.

    A copy without its repository (an image, a GPU machine) says it in SPARING_COMMIT.
    """
    if told := os.environ.get("SPARING_COMMIT"):
        return told
    here = Path(__file__).resolve().parent
    # Installed into somebody's project, the code lies in their repository and is not of it.
    if not _git(here, "ls-files", "--error-unmatch", "--", Path(__file__).name):
        return None
    head = _git(here, "rev-parse", "--short=12", "HEAD")
    if not head:
        return None
    return f"{head}+changes" if _git(here, "status", "--porcelain") else head


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
