"""Folders that appear complete or not at all."""

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sparing.files import sync


@contextmanager
def building(folder: Path) -> Iterator[Path]:
    """Yield an empty scratch folder; it becomes `folder` when the block succeeds.

    Should another process finish first, its folder stays and this one is thrown away.
    """
    prefix = f".{folder.name}.{socket.gethostname()}."
    folder.parent.mkdir(parents=True, exist_ok=True)
    _sweep(folder.parent, prefix)
    scratch = folder.with_name(f"{prefix}{os.getpid()}")
    scratch.mkdir()
    try:
        yield scratch
        for path in scratch.iterdir():
            sync(path)
        os.rename(scratch, folder)
    except OSError:
        if not folder.exists():
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _sweep(parent: Path, prefix: str) -> None:
    """Remove what killed processes of this machine have left behind."""
    for path in parent.glob(f"{prefix}*"):
        owner = path.name.removeprefix(prefix)
        if owner.isdecimal() and (int(owner) == os.getpid() or not _alive(int(owner))):
            shutil.rmtree(path, ignore_errors=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
