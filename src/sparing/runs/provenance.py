"""Provenance of a run's numbers: code, versions, machine, command."""

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
    """A record to store beside results."""
    return {
        "commit": current_commit(),
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
    """The current time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def current_commit() -> str | None:
    """The commit of the running code, with `+changes` if files of that commit were changed.

    Other files do not count: none of ours would import them without a change of its own.
    Without a repository (in an image, on a GPU machine) it is taken from SPARING_COMMIT.
    """
    if stated := os.environ.get("SPARING_COMMIT"):
        return stated
    here = Path(__file__).resolve().parent
    # The code may be installed inside the repository of another project.
    if not _git(here, "ls-files", "--error-unmatch", "--", Path(__file__).name):
        return None
    head = _git(here, "rev-parse", "--short=12", "HEAD")
    if not head:
        return None
    changed = _git(here, "status", "--porcelain", "--untracked-files=no")
    return f"{head}+changes" if changed else head


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
