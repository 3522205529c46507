"""Files that a user names: ordinary ones, as others may block or never end; names of new ones."""

import os
import stat
import sys
from functools import partial
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import IO

from sparing.errors import UserError

MAX_BYTES = 1 << 30
"""Maximum size of an input that is read into memory as a whole."""
BLOCK_BYTES = 1 << 20
KINDS = {
    stat.S_IFDIR: "folder",
    stat.S_IFIFO: "named pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}


def open_regular(path: Path) -> BufferedReader:
    """Open an ordinary file for reading; raise a UserError if it is missing or anything else."""
    try:
        # Asked before it is opened: opening a device may already have an effect.
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            kind = KINDS.get(stat.S_IFMT(found.st_mode), "special file")
            raise UserError(f"{path} is a {kind}, not a file")
        file = open(path, "rb", opener=_open_without_waiting)  # noqa: SIM115  for the caller
    except FileNotFoundError:
        raise UserError(f"{path} is missing") from None
    except PermissionError:
        raise UserError(f"no permission to read {path}") from None
    if found.st_size == 0 and _has_content(file):
        file.close()
        raise UserError(f"{path} is made up by the system as it is read; copy it to a file first")
    return file


def read_input(path: Path) -> bytes:
    """Read a file as a whole; `-`, /dev/stdin and the shell's /dev/fd/N are read as streams."""
    if str(path) in ("-", "/dev/stdin"):
        data = _read_most(sys.stdin.buffer)
    else:
        # What the shell opened for us, as in <(command), is meant to be read to its end.
        of_shell = path.parent == Path("/dev/fd")
        with open(path, "rb") if of_shell else open_regular(path) as file:
            data = _read_most(file)
    if len(data) > MAX_BYTES:
        raise UserError(f"{path} holds more than {MAX_BYTES:,} bytes; give a part of it")
    return data


def check_new_path(name: str) -> None:
    """Refuse a name for a new file or folder that is empty, or that not every library can open."""
    if not name.strip():
        # As from an unset variable; it would mean the current folder.
        raise UserError("`out` is empty; name a file or folder to write to")
    if "\0" in name:
        raise UserError(f"`out` has a NUL character: {name!r}; choose another name")
    if any("\ud800" <= character <= "\udfff" for character in name):
        # safetensors and TensorBoard could not open it.
        raise UserError(f"`out` {name} is not UTF-8; choose another name")


def _read_most(file: IO[bytes]) -> bytes:
    """Read to the end, or a little more than is allowed."""
    blocks = iter(partial(file.read, BLOCK_BYTES), b"")
    return b"".join(islice(blocks, MAX_BYTES // BLOCK_BYTES + 1))


def _open_without_waiting(path: str, flags: int) -> int:
    # In case the file has just been replaced by a pipe, whose opening waits for a writer.
    return os.open(path, flags | os.O_NONBLOCK)


def _has_content(file: IO[bytes]) -> bool:
    """Whether a file of size 0 can be read, as those of /proc can, some of them without end."""
    try:
        return bool(os.pread(file.fileno(), 1, 0))
    except OSError:
        # It can be read, but not now or not here.
        return True
