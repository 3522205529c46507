"""Writing that cannot leave half a file behind, and a lock that dies with its process."""

import errno
import fcntl
import json
import math
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from sparing.errors import UserError

LOCK = ".lock"


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Yield a scratch path beside `path`; it takes `path`'s place when the block succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with naming(path, scratch):
            yield scratch
            sync(scratch)
            os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


@contextmanager
def naming(path: Path, scratch: Path | None = None) -> Iterator[None]:
    """Let an OSError inside name `path` where it names no file, as a failed write does not, or
    one that the user knows nothing of."""
    try:
        yield
    except OSError as problem:
        # One without an error number says all it has in its message, which a file name would hide.
        if problem.errno is not None:
            hidden = problem.filename in (None, str(scratch))
            problem.filename = str(path) if hidden else problem.filename
        raise


def sync(path: Path) -> None:
    """Push a file (or a folder's entries) to the disk, so that a rename after it is safe."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_bytes(path: Path, data: bytes | memoryview) -> None:
    """Write all of `data` to the disk, or raise an OSError that names `path`."""
    with naming(path), open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        found, wanted = os.fstat(file.fileno()).st_size, memoryview(data).nbytes
        if found != wanted:
            raise OSError(errno.EIO, f"{found:,} of {wanted:,} bytes were written", str(path))


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
    except (OSError, ValueError, RecursionError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise UserError(f"{path} cannot be read: {reason}") from None


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; a UserError when it is missing, damaged or anything else."""
    found = read_json(path)
    if not isinstance(found, dict):
        raise UserError(f"{path} is damaged: it holds a {type(found).__name__}, not an object")
    return found


@contextmanager
def locked(folder: Path, *, name: str = LOCK, wait_s: float = 0.0) -> Iterator[None]:
    """Hold `folder` for this process; the kernel lets go of it however the process ends.

    While another process holds it, wait `wait_s` for that one to let go, then refuse; `math.inf`
    waits for as long as it takes.
    """
    with _held(folder, name, time.monotonic() + wait_s):
        yield


def _held(folder: Path, name: str, give_up_at: float) -> IO[str]:
    """The lock's file, which this process holds until it closes it."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        # Who held it before may take the folder away at any moment (`claimed`): then once more.
        with suppress(FileNotFoundError), ExitStack() as opened:
            handle = opened.enter_context(open(folder / name, "a+", encoding="utf-8"))
            _wait_for(handle, folder, give_up_at)
            if os.path.samestat(os.fstat(handle.fileno()), os.stat(folder / name)):
                opened.pop_all()
                return handle


def _wait_for(handle: IO[str], folder: Path, give_up_at: float) -> None:
    while True:
        try:
            # Who waits for ever leaves it to the kernel to wake them.
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if give_up_at == math.inf else fcntl.LOCK_NB))
            return
        except BlockingIOError:
            if time.monotonic() >= give_up_at:
                raise UserError(f"{folder} is in use by another process") from None
            time.sleep(0.05)


@contextmanager
def claimed(folder: Path, *, wait_s: float = 0.0) -> Iterator[None]:
    """Hold `folder` as `locked` does; one that this made goes again if the block fails at once.

    At once: before anything was written into it.
    """
    made = not folder.exists()
    with locked(folder, wait_s=wait_s):
        try:
            yield
        except BaseException:
            # While it is still held: nobody else can have begun to write there.
            with suppress(OSError):
                if made and [path.name for path in folder.iterdir()] == [LOCK]:
                    (folder / LOCK).unlink()
                    folder.rmdir()
            raise
