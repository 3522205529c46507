"""Checkpoints: safetensors and JSON, checksummed, swapped in whole; no pickle.

A checkpoint is first written to `incoming`, then `last` becomes `previous` and `incoming` becomes
`last`. Killed at any moment, the folder still holds a complete checkpoint.
"""

import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from sparing.config import flatten
from sparing.errors import UserError
from sparing.files import read_object, sync, write_json

FORMAT = 1
MANIFEST, CURSOR = "manifest.json", "cursor.json"
NAMES = ("last", "previous", "best")
Complete = Callable[[Mapping[str, Any]], Mapping[str, Any]]
PATIENCE = 5
"""How often a checkpoint that was replaced while it was read is read again."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything needed to go on as if nothing had happened."""

    tensors: Mapping[str, Mapping[str, Tensor]]
    """File stem -> tensors: `model`, `optimizer`, `state`."""
    cursor: Mapping[str, Any]
    """Step, stream position, schedule: plain JSON."""


def save(folder: Path, name: str, checkpoint: Checkpoint, identity: Mapping[str, Any]) -> None:
    """Write `checkpoint` as `folder/name`; the one it replaces stays as `previous`."""
    _mend(folder, name)
    _swap_in(folder, name, _made(folder, name, checkpoint, identity, {}))
    _rotate(folder, name)


def amend(folder: Path, name: str, checkpoint: Checkpoint, identity: Mapping[str, Any]) -> None:
    """Put `checkpoint` in the place of `folder/name`, which goes; what it does not hold stays.

    Files that stay are shared, not copied: a carried state may be gigabytes.
    """
    _mend(folder, name)
    present = _manifest(folder / name / MANIFEST)["files"]
    fresh = {CURSOR, *(f"{stem}.safetensors" for stem in checkpoint.tensors)}
    kept = {file: sums for file, sums in present.items() if file not in fresh}
    _swap_in(folder, name, _made(folder, name, checkpoint, identity, kept))
    shutil.rmtree(folder / f"retired-{name}", ignore_errors=True)


def _made(
    folder: Path,
    name: str,
    checkpoint: Checkpoint,
    identity: Mapping[str, Any],
    kept: Mapping[str, Any],
) -> Path:
    """Where a whole checkpoint lies that waits to be swapped in; of the present one, `kept`."""
    incoming = folder / f"incoming-{name}"
    shutil.rmtree(incoming, ignore_errors=True)
    incoming.mkdir(parents=True)
    try:
        sums = _write(incoming, checkpoint)
        for file in kept:
            _share(folder / name / file, incoming / file)
        body = {"format": FORMAT, "identity": identity, "files": {**kept, **sums}}
        write_json(incoming / MANIFEST, {**body, "crc32": _body_checksum(body)})
    except OSError:
        # A full disk is no place to leave half a checkpoint.
        shutil.rmtree(incoming, ignore_errors=True)
        raise
    return incoming


def load(
    folder: Path, name: str, identity: Mapping[str, Any], complete: Complete = dict
) -> Checkpoint:
    """Read and verify `folder/name`; it must have been written for the same `identity`.

    `complete` adds what a stored identity does not name, such as settings that are newer than it.
    """
    for _ in range(PATIENCE):
        before = _stamp(folder, name)
        try:
            return _read(folder, name, identity, complete)
        except (UserError, OSError):
            # A run that goes on training may have swapped it under our eyes.
            if _stamp(folder, name) == before:
                raise
    return _read(folder, name, identity, complete)


def _stamp(folder: Path, name: str) -> tuple[Path, int, int] | None:
    """Tells one checkpoint of a name from the next, and where it lies from where it lay."""
    path = located(folder, name)
    try:
        found = (path / MANIFEST).stat() if path is not None else None
    except OSError:
        return None
    return None if path is None or found is None else (path, found.st_ino, found.st_mtime_ns)


def _read(folder: Path, name: str, identity: Mapping[str, Any], complete: Complete) -> Checkpoint:
    path = located(folder, name)
    if path is None:
        raise UserError(f"there is no checkpoint {folder / name}{_others(folder)}")
    try:
        manifest = _manifest(path / MANIFEST)
        _verify(path, manifest["files"])
        cursor = read_object(path / CURSOR)
    except UserError as problem:
        raise UserError(f"{problem}{_others(folder, name)}") from None
    _same_identity(path, complete(manifest["identity"]), identity)
    files = [path / file for file in manifest["files"] if file != CURSOR]
    try:
        return Checkpoint({file.stem: load_file(file) for file in files}, cursor)
    except SafetensorError as problem:
        raise UserError(f"{path} cannot be read: {problem}{_others(folder, name)}") from None


def drop(folder: Path, name: str) -> None:
    """Remove `folder/name`, and what a kill left of its making; all of it or nothing."""
    trash = folder / "trash"
    for stem in (f"incoming-{name}", f"retired-{name}", name):
        shutil.rmtree(trash, ignore_errors=True)
        if (folder / stem).is_dir():
            (folder / stem).rename(trash)
    sync(folder)
    shutil.rmtree(trash, ignore_errors=True)


def exists(folder: Path, name: str = "last") -> bool:
    """Whether there is a checkpoint of that name."""
    return located(folder, name) is not None


def present(folder: Path) -> list[str]:
    """The names of the checkpoints there are, damaged ones among them."""
    return [name for name in NAMES if exists(folder, name)]


def located(folder: Path, name: str) -> Path | None:
    """Where a checkpoint lies: under its name, or where a kill between two renames left it."""
    if (folder / name).is_dir():
        return folder / name
    if (folder / f"incoming-{name}" / MANIFEST).is_file():
        return folder / f"incoming-{name}"
    retired = folder / f"retired-{name}"
    return retired if retired.is_dir() else None


def _share(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        # Not every file system lets a file have two names.
        shutil.copy2(source, target)
        sync(target)


def _write(incoming: Path, checkpoint: Checkpoint) -> dict[str, dict[str, int]]:
    """The checksums of the files made."""
    write_json(incoming / CURSOR, checkpoint.cursor)
    for stem, tensors in checkpoint.tensors.items():
        path = incoming / f"{stem}.safetensors"
        plain = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
        try:
            save_file(plain, path)
        except SafetensorError as problem:
            raise _of_the_system(problem, path) from None
        # safetensors lets nobody else read what it writes, whatever the user's umask says.
        shutil.copymode(incoming / CURSOR, path)
        sync(path)
    return {path.name: _checksum(path) for path in sorted(incoming.iterdir())}


def _of_the_system(problem: SafetensorError, path: Path) -> Exception:
    """The OSError that safetensors tells of in words only, or `problem` if it is none."""
    number = re.search(r"(?:os error|code:) (\d+)", str(problem))
    if number is None:
        return problem
    return OSError(int(number[1]), os.strerror(int(number[1])), str(path))


def _manifest(path: Path) -> dict[str, Any]:
    """What a checkpoint says of itself, exactly as it was written."""
    body = read_object(path)
    checksum = body.pop("crc32", None)
    if checksum != _body_checksum(body):
        raise UserError(f"{path} is damaged")
    if body.get("format") != FORMAT:
        raise UserError(f"{path} is not a checkpoint manifest of format {FORMAT}")
    for field in ("identity", "files"):
        if not isinstance(body.get(field), dict):
            raise UserError(f"{path} is damaged: it has no {field}")
    return body


def _body_checksum(body: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True).encode("utf-8"))


def _verify(path: Path, files: Mapping[str, Any]) -> None:
    for file, written in files.items():
        if not (path / file).is_file():
            raise UserError(f"{path / file} is missing")
        if _checksum(path / file) != written:
            raise UserError(f"{path / file} is damaged")


def _swap_in(folder: Path, name: str, incoming: Path) -> None:
    current, retired = folder / name, folder / f"retired-{name}"
    shutil.rmtree(retired, ignore_errors=True)
    if current.is_dir():
        current.rename(retired)
    incoming.rename(current)
    sync(folder)


def _rotate(folder: Path, name: str) -> None:
    """The `last` that was swapped out becomes `previous`; others go."""
    retired, trash = folder / f"retired-{name}", folder / "trash"
    if name == "last" and retired.is_dir():
        previous = folder / "previous"
        shutil.rmtree(trash, ignore_errors=True)
        if previous.is_dir():
            previous.rename(trash)
        retired.rename(previous)
    for leftover in (retired, trash):
        shutil.rmtree(leftover, ignore_errors=True)


def _mend(folder: Path, name: str) -> None:
    """Finish a swap that a kill interrupted; only the run's owner may, readers use `located`."""
    found = located(folder, name)
    if found is not None and found != folder / name:
        found.rename(folder / name)


def _checksum(path: Path) -> dict[str, int]:
    # CRC-32 finds truncation and flipped bits at gigabytes per second; nobody is being deceived.
    total, size = 0, 0
    with open(path, "rb") as file:
        while chunk := file.read(1 << 22):
            total, size = zlib.crc32(chunk, total), size + len(chunk)
    return {"bytes": size, "crc32": total}


def _same_identity(path: Path, written: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    there, here = (flatten(json.loads(json.dumps(each))) for each in (written, wanted))
    for key in sorted(there.keys() | here.keys()):
        if (old := there.get(key)) != (new := here.get(key)):
            raise UserError(f"{path} is of another model: {key} is {old!r} there and {new!r} here")


def _sound(folder: Path, name: str) -> bool:
    path = located(folder, name)
    try:
        if path is not None:
            _verify(path, _manifest(path / MANIFEST)["files"])
            read_object(path / CURSOR)
    except (UserError, OSError):
        return False
    return path is not None


def _others(folder: Path, but: str = "") -> str:
    names = [name for name in present(folder) if name != but and _sound(folder, name)]
    return f"; still there: {', '.join(names)} (choose with --checkpoint)" if names else ""
