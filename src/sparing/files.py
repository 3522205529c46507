"""Atomic writes of files and folders, JSON files, and folder locks."""

import errno
import fcntl
import hashlib
import json
import math
import os
import re
import shutil
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from sparing.errors import UserError
from sparing.inputs import open_regular

LOCK = ".lock"
MAX_NAME_BYTES = 255
"""Of a file, on nearly every file system."""
MAX_DIGITS = 20
"""Of a whole number in JSON: 64 bits and a sign."""
MAX_NESTED = 50
"""Levels of groups and lists in JSON."""
SURROGATE = re.compile(r"\\ud[89a-f]", re.IGNORECASE)


def expand_home(path: str | Path) -> Path:
    """`path` with the home folder of `~` or `~user`; as it is where there is no such user."""
    return Path(os.path.expanduser(path))


def to_os_error(problem: Exception, path: Path) -> Exception:
    """The OSError whose number a library reports as text; other problems as they are."""
    number = re.search(r"(?:os error|code:) (\d+)", str(problem))
    if number is None:
        return problem
    return OSError(int(number[1]), os.strerror(int(number[1])), str(path))


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to `path`; it replaces `path` when the block succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = _scratch_path(path, ".part")
    try:
        with add_path_to_errors(path, scratch):
            yield scratch
            fsync(scratch)
            os.replace(scratch, path)
    finally:
        # Where nothing can be written, nothing can be removed either: the first error says why.
        with suppress(OSError):
            scratch.unlink()


def check_writable(path: Path) -> None:
    """Raise now the OSError that `atomic_write` would raise after long work; leave nothing."""
    made = [folder for folder in path.parents if not folder.exists()]
    scratch = _scratch_path(path, ".part")
    try:
        if made:
            path.parent.mkdir(parents=True, exist_ok=True)
        with add_path_to_errors(path, scratch):
            scratch.touch()
            scratch.unlink()
    finally:
        for folder in made:
            # Unless somebody else has begun to use it.
            with suppress(OSError):
                folder.rmdir()


@contextmanager
def atomic_folder(folder: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield an empty temporary folder; it becomes `folder` when the block succeeds.

    If another process creates `folder` first, that one is kept and this one is deleted. With
    `replace` there may be an old `folder`, which is kept until then.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder.parent, folder.name)
    scratch = _scratch_path(folder)
    scratch.mkdir()
    try:
        yield scratch
        for path in scratch.iterdir():
            fsync(path)
        (_replace_folder if replace else _rename_folder)(scratch, folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _rename_folder(scratch: Path, folder: Path) -> None:
    try:
        os.rename(scratch, folder)
    except OSError:
        if not folder.exists():
            raise


def _replace_folder(scratch: Path, folder: Path) -> None:
    # A folder cannot be renamed to one that has files.
    old = _scratch_path(folder, ".old")
    try:
        with suppress(FileNotFoundError):
            os.rename(folder, old)
        _rename_folder(scratch, folder)
    finally:
        if folder.exists():
            shutil.rmtree(old, ignore_errors=True)
        elif old.exists():
            os.rename(old, folder)


def _scratch_path(path: Path, ending: str = "") -> Path:
    """A name for what is to become `path`, as `remove_leftovers` knows it."""
    rest = f".{socket.gethostname()}.{os.getpid()}{ending}"
    fits = len(os.fsencode(f".{path.name}{rest}")) <= MAX_NAME_BYTES
    return path.with_name(f".{path.name if fits else _short_name(path.name)}{rest}")


def _short_name(name: str) -> str:
    return hashlib.sha256(os.fsencode(name)).hexdigest()[:16]


def remove_leftovers(folder: Path, name: str | None = None) -> None:
    """Remove temporary files and folders that killed processes of this machine left in `folder`.

    With a `name` only those that were to get it. This process must not be writing any of them.
    """
    target = ".+" if name is None else f"(?:{re.escape(name)}|{_short_name(name)})"
    host = re.escape(socket.gethostname())
    pattern = re.compile(rf"\.{target}\.{host}\.(\d+)(\.part|\.old)?")
    for path in folder.iterdir():
        found = pattern.fullmatch(path.name)
        if found and (int(found[1]) == os.getpid() or not _is_alive(int(found[1]))):
            with suppress(FileNotFoundError):
                (shutil.rmtree if path.is_dir() else os.unlink)(path)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@contextmanager
def add_path_to_errors(path: Path, scratch: Path | None = None) -> Iterator[None]:
    """Make an OSError raised inside name `path` instead of no file or the temporary `scratch`."""
    try:
        yield
    except OSError as problem:
        # Without an error number the message is all there is, and a file name would hide it.
        if problem.errno is not None:
            hidden = problem.filename in (None, str(scratch))
            problem.filename = str(path) if hidden else problem.filename
        raise


def fsync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk, so that a rename after it is safe."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_bytes(path: Path, data: bytes | memoryview) -> None:
    """Write all of `data` to disk, or raise an OSError that names `path`."""
    with add_path_to_errors(path), open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        found, wanted = os.fstat(file.fileno()).st_size, memoryview(data).nbytes
        if found != wanted:
            raise OSError(errno.EIO, f"{found:,} of {wanted:,} bytes were written", str(path))


def write_json(path: Path, data: Any) -> None:
    """Replace `path` atomically by `data` as indented JSON."""
    with atomic_write(path) as scratch:
        scratch.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Read a JSON file; raise a UserError if it is missing or damaged."""
    try:
        with open_regular(path) as file:
            return parse_json(file.read().decode("utf-8"))
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise UserError(f"{path} cannot be read: {reason}") from None


def parse_json(text: str) -> Any:
    """Parse JSON; a ValueError also for what nothing here writes and readers would stumble over."""
    try:
        data = json.loads(text, parse_int=_parse_int)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    level = [data]
    for _ in range(MAX_NESTED):
        level = [item for each in level for item in _items(each)]
    if level:
        raise ValueError("it is nested too deeply")
    if SURROGATE.search(text):
        # Only those that stand for the bytes of a file name can be written again.
        json.dumps(data, ensure_ascii=False).encode("utf-8", "surrogateescape")
    return data


def _parse_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"it has a whole number of {len(digits):,} digits")
    return int(digits)


def _items(data: Any) -> Iterable[Any]:
    if isinstance(data, dict):
        return data.values()
    return data if isinstance(data, list) else ()


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; raise a UserError if the file is missing, damaged or holds no object."""
    found = read_json(path)
    if not isinstance(found, dict):
        raise UserError(f"{path} is damaged: it holds a {type(found).__name__}, not an object")
    return found


@contextmanager
def lock_folder(folder: Path, *, name: str = LOCK, wait_s: float = 0.0) -> Iterator[None]:
    """Hold an exclusive lock on `folder`; the kernel releases it however the process ends.

    If another process holds the lock, wait up to `wait_s` seconds (`math.inf`: for ever), then
    raise a UserError.
    """
    with _acquire(folder, name, time.monotonic() + wait_s):
        yield


def _acquire(folder: Path, name: str, give_up_at: float) -> IO[str]:
    """Return the open lock file; closing it releases the lock."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        # The previous holder may remove the folder at any moment (`claim_folder`); then try again.
        with suppress(FileNotFoundError), ExitStack() as opened:
            handle = opened.enter_context(open(folder / name, "a+", encoding="utf-8"))
            _flock(handle, folder, give_up_at)
            if os.path.samestat(os.fstat(handle.fileno()), os.stat(folder / name)):
                opened.pop_all()
                return handle


def _flock(handle: IO[str], folder: Path, give_up_at: float) -> None:
    while True:
        try:
            # Without a time limit the kernel does the waiting.
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if give_up_at == math.inf else fcntl.LOCK_NB))
            return
        except BlockingIOError:
            if time.monotonic() >= give_up_at:
                raise UserError(f"{folder} is in use by another process") from None
            time.sleep(0.05)


@contextmanager
def claim_folder(folder: Path, *, wait_s: float = 0.0) -> Iterator[None]:
    """Lock `folder` and create it if needed.

    If the block fails before it wrote anything into a folder created here, remove it again.
    """
    made = not folder.exists()
    with lock_folder(folder, wait_s=wait_s):
        try:
            yield
        except BaseException:
            # The lock is still held, so no other process can have started to write there.
            with suppress(OSError):
                if made and [path.name for path in folder.iterdir()] == [LOCK]:
                    (folder / LOCK).unlink()
                    folder.rmdir()
            raise
