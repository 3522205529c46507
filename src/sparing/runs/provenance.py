"""Provenance of a run's numbers: code, versions, machine, command."""

import hashlib
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from sparing.device import Hardware
from sparing.launch import current_launch

PACKAGE = Path(__file__).resolve().parents[1]


def provenance(hardware: Hardware, seed: int) -> dict[str, Any]:
    """A record to store beside results."""
    return {
        "commit": current_commit(),
        "source_sha256": source_sha256(),
        "versions": {name: _version(name) for name in ("sparing", "torch", "numpy", "triton")},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": hardware.describe(),
        "precision": hardware.precision,
        "command": _command(),
        "seed": seed,
        "processes": current_launch().size,
        "launch": current_launch().id,
        "started_at": now(),
    }


def _command() -> list[str]:
    """The words of our command line, or of the Python program that calls us."""
    program = Path(sys.argv[0])
    if program.name == "sparing" or program.resolve() == PACKAGE / "__main__.py":
        return ["sparing", *sys.argv[1:]]
    return ["python", *sys.orig_argv[1:]]


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


@cache
def source_sha256(package: Path = PACKAGE) -> str:
    """SHA-256 of the package's Python files and their names: the code, wherever it is.

    A copy has no repository, and a commit with changes is not the code that ran.
    """
    digest = hashlib.sha256()
    files = {path.relative_to(package).as_posix(): path for path in package.rglob("*.py")}
    for name in sorted(files):
        content = files[name].read_bytes()
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


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
