"""Text of the user's own: files, archives and folders."""

import hashlib
import os
import platform
import shutil
import socket
import sysconfig
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path

from sparing.data.archive import read, unpack
from sparing.data.text import character_boundary
from sparing.errors import UserError
from sparing.files import sync
from sparing.units import counted


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


SMALLEST_BYTES = 100
SPLITS = ("train", "valid", "test")
NO_SOURCE = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
"""Folders of the standard library that hold tests or other people's code."""


def read_path(path: Path) -> bytes:
    """The text of a file (unpacked if it is an archive), or of all text files of a folder.

    A folder's files are joined in the order of their relative paths; hidden ones and binary ones
    (those with a NUL byte) are left out. A single binary file is taken as it is.
    """
    if path.is_dir():
        texts = [read(file) for file in files_under(path)]
        text = b"".join(text for text in texts if b"\0" not in text)
    elif path.exists() and not path.is_file():
        raise UserError(f"{path} is neither a file nor a folder")
    else:
        members = unpack(path)
        text = b"".join(members[name] for name in sorted(members))
    if not text:
        raise UserError(f"{path} holds no text")
    if len(text) < SMALLEST_BYTES:
        raise UserError(
            f"{path} holds {counted(len(text), 'byte')} of text; "
            f"a corpus needs at least {SMALLEST_BYTES}"
        )
    return text


def files_under(folder: Path, skipped: Container[str] = ()) -> list[Path]:
    """The visible files below `folder`, sorted by their relative paths."""
    return sorted(_walk(folder, skipped), key=lambda path: path.relative_to(folder).as_posix())


def _walk(folder: Path, skipped: Container[str]) -> Iterator[Path]:
    for where, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name[0] != "." and name not in skipped]
        for name in names:
            path = Path(where, name)
            if name[0] != "." and path.is_file():
                yield path


def split_by_bytes(text: bytes) -> dict[str, bytes]:
    """The first 90 % to train on, then 5 % and 5 %; no UTF-8 character is cut in two."""
    first = character_boundary(text, len(text) * 90 // 100)
    second = character_boundary(text, len(text) * 95 // 100)
    return {"train": text[:first], "valid": text[first:second], "test": text[second:]}


def fingerprint(path: Path) -> str:
    """Changes when a file below `path` does; reads names, sizes and times only."""
    files = files_under(path) if path.is_dir() else [path]
    return "\n".join([str(path.resolve()), *(_stamp(file) for file in files)])


def _stamp(file: Path) -> str:
    status = file.stat()
    return f"{file}\t{status.st_size}\t{status.st_mtime_ns}"


def stdlib_fingerprint() -> str:
    """Changes with the interpreter and with the files of its library."""
    return "\n".join([platform.python_version(), *(_stamp(file) for file in _stdlib_files())])


def read_stdlib() -> dict[str, bytes]:
    """The source of the running interpreter's standard library, split by whole files."""
    root, parts = stdlib_folder(), {split: [b""] for split in SPLITS}
    for file in _stdlib_files():
        name = file.relative_to(root).as_posix()
        source = read(file)
        end = b"" if source.endswith(b"\n") else b"\n"
        parts[split_of(name)].append(b"# file: " + name.encode("utf-8") + b"\n" + source + end)
    splits = {split: b"".join(sources) for split, sources in parts.items()}
    if min(len(text) for text in splits.values()) < SMALLEST_BYTES:
        raise UserError(f"no Python source found below {root}; choose another data.corpus")
    return splits


def split_of(name: str) -> str:
    """Nine files in ten train; the choice hangs on the file's name alone."""
    # The salt was chosen for its even split: 89.8 / 4.5 / 5.7 % of the bytes of Python 3.11.
    digest = hashlib.sha256(b"sparing/" + name.encode("utf-8")).digest()
    bucket = int.from_bytes(digest[:8], "big") % 20
    return {0: "valid", 1: "test"}.get(bucket, "train")


def stdlib_folder() -> Path:
    """Where the running interpreter keeps its library."""
    return Path(sysconfig.get_path("stdlib"))


def _stdlib_files() -> list[Path]:
    # _sysconfigdata holds the paths of the machine that built Python.
    return [
        file
        for file in files_under(stdlib_folder(), NO_SOURCE)
        if file.suffix == ".py" and not file.name.startswith("_sysconfigdata")
    ]
