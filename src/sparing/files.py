"""Writing that cannot leave half a file behind, and a lock that dies with its process."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sparing.errors import UserError


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Yield a scratch path beside `path`; it takes `path`'s place when the block succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield scratch
        sync(scratch)
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Push a file (or a folder's entries) to the disk, so that a rename after it is safe."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, data: Any) -> None:
    """Replace `path` by `data`, indented, at once."""
    with writing(path) as scratch:
        scratch.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """The JSON in `path`; a UserError when it is missing or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing") from None
    except (OSError, ValueError) as problem:
        raise UserError(f"{path} cannot be read: {problem}") from None


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold `folder` for this process; the kernel lets go of it however the process ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "a+", encoding="utf-8") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"{folder} is in use by another process") from None
        yield
