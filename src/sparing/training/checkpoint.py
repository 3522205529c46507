"""Checkpoints: safetensors and JSON with checksums, replaced atomically; no pickle.

A checkpoint is first written to `incoming-NAME`, its manifest at the end, and then swapped in.
"""

import json
import shutil
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Required, TypedDict, TypeVar, cast

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from sparing import __version__
from sparing.config import flatten
from sparing.documents import Count, conform, damage_named, read_document
from sparing.errors import UserError
from sparing.files import fsync, read_object, to_os_error, write_json
from sparing.training import swap
from sparing.training.swap import MANIFEST, NAMES, locate

FORMAT = 1
CURSOR, SETTINGS = "cursor.json", "config.json"
Complete = Callable[[Mapping[str, Any]], Mapping[str, Any]]
Read = TypeVar("Read")
MAX_READS = 5
"""How often a checkpoint that was replaced while it was read is read again."""


class Sums(TypedDict):
    """Size and checksum of a file."""

    bytes: Count
    crc32: Count


class Manifest(TypedDict, total=False):
    """The content of manifest.json besides its own checksum."""

    format: Required[int]
    identity: Required[dict[str, Any]]
    files: Required[dict[str, Sums]]
    version: str


class Position(TypedDict, total=False):
    """The fields of cursor.json that are not counters, and the one that every reader needs."""

    step: Required[Count]
    cursor: tuple[Count, Count, Count]
    loss_scale: tuple[float, Count] | None
    order: dict[str, int | bool]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Tensors and numbers of a training, as stored on disk."""

    tensors: Mapping[str, Mapping[str, Tensor]]
    """File stem -> tensors: `model`, `optimizer`, `state`."""
    cursor: Mapping[str, Any]
    """Step, stream position, schedule: plain JSON."""
    version: str | None = None
    """The version of this package that wrote it, if that is known."""
    settings: Mapping[str, Any] | None = None
    """Settings of the run from here on, if they change; see `RunFolder.adopt_settings`."""


def save(
    folder: Path,
    name: str,
    checkpoint: Checkpoint,
    identity: Mapping[str, Any],
    *,
    rotate: bool = True,
) -> None:
    """Write `checkpoint` as `folder/name`; a replaced `last` stays as `previous` with `rotate`."""
    swap.begin(folder, name)
    save_begun(folder, name, checkpoint, identity, rotate=rotate)


def save_begun(
    folder: Path,
    name: str,
    checkpoint: Checkpoint,
    identity: Mapping[str, Any],
    *,
    rotate: bool = True,
) -> None:
    """Like `save`, after `swap.begin`."""
    _write_incoming(folder, name, checkpoint, identity, {})
    swap.swap_in(folder, name, rotate=rotate and name == "last")


def update(folder: Path, name: str, checkpoint: Checkpoint, identity: Mapping[str, Any]) -> None:
    """Replace the files of `folder/name` that `checkpoint` holds and keep the others.

    Kept files are hard-linked, not copied: a carried state may have gigabytes.
    """
    swap.settle(folder)
    existing = _manifest(folder / name / MANIFEST)["files"]
    new = {CURSOR, *(f"{stem}.safetensors" for stem in checkpoint.tensors)}
    kept = {file: sums for file, sums in existing.items() if file not in new}
    swap.begin(folder, name)
    _write_incoming(folder, name, checkpoint, identity, kept)
    swap.swap_in(folder, name, rotate=False)


def _write_incoming(
    folder: Path,
    name: str,
    checkpoint: Checkpoint,
    identity: Mapping[str, Any],
    kept: Mapping[str, Any],
) -> None:
    """Write a complete checkpoint that is ready to be swapped in, with `kept` files linked."""
    incoming = folder / f"incoming-{name}"
    try:
        sums = _write(incoming, checkpoint)
        for file in kept:
            swap.link_or_copy(folder / name / file, incoming / file)
        if name == "last":
            swap.keep_best(folder)
        if checkpoint.settings is not None:
            write_json(incoming / SETTINGS, checkpoint.settings)
        files = {**kept, **sums}
        body = {"format": FORMAT, "version": __version__, "identity": identity, "files": files}
        write_json(incoming / MANIFEST, {**body, "crc32": _body_checksum(body)})
    except OSError:
        # Do not leave half a checkpoint on a full disk.
        shutil.rmtree(incoming, ignore_errors=True)
        raise


def load(
    folder: Path, name: str, identity: Mapping[str, Any], complete: Complete = dict
) -> Checkpoint:
    """Read and verify `folder/name`; it must have been written for the same `identity`.

    `complete` adds what a stored identity does not name, such as settings that are newer than it.
    """
    return read_unmixed(folder, name, lambda: _read(folder, name, identity, complete))


def read_unmixed(folder: Path, name: str, read: Callable[[], Read]) -> Read:
    """Return what `read` takes from `folder/name`, all of it from one and the same checkpoint.

    A run in training may replace the checkpoint meanwhile; then `read` is called again.
    """
    for _ in range(MAX_READS):
        before = _stamp(folder, name)
        try:
            found = read()
        except (UserError, OSError):
            if _stamp(folder, name) == before:
                raise
        else:
            if _stamp(folder, name) == before:
                return found
    raise UserError(f"{folder / name} is being replaced faster than it can be read; try again")


def _stamp(folder: Path, name: str) -> tuple[Path, int, int] | None:
    """Identifies a checkpoint: changes when it is moved or replaced."""
    path = locate(folder, name)
    try:
        found = (path / MANIFEST).stat() if path is not None else None
    except OSError:
        return None
    return None if path is None or found is None else (path, found.st_ino, found.st_mtime_ns)


def _read(folder: Path, name: str, identity: Mapping[str, Any], complete: Complete) -> Checkpoint:
    path = locate(folder, name)
    if path is None:
        raise UserError(f"there is no checkpoint {folder / name}{_others(folder)}")
    try:
        manifest = _manifest(path / MANIFEST)
        _verify(path, manifest["files"])
        cursor = read_document(path / CURSOR, Position)
    except UserError as problem:
        raise UserError(f"{problem}{_others(folder, name)}") from None
    _same_identity(path, complete(manifest["identity"]), identity)
    files = [path / file for file in manifest["files"] if file != CURSOR]
    try:
        tensors = {file.stem: load_file(file) for file in files}
    except SafetensorError as problem:
        raise UserError(f"{path} cannot be read: {problem}{_others(folder, name)}") from None
    return Checkpoint(tensors, cursor, manifest.get("version"))


def exists(folder: Path, name: str = "last") -> bool:
    """Whether there is a checkpoint with that name."""
    return locate(folder, name) is not None


def list_names(folder: Path) -> list[str]:
    """The names of all checkpoints in a folder, including damaged ones."""
    return [name for name in NAMES if exists(folder, name)]


def _write(incoming: Path, checkpoint: Checkpoint) -> dict[str, Sums]:
    """Write all files and return their checksums."""
    write_json(incoming / CURSOR, checkpoint.cursor)
    for stem, tensors in checkpoint.tensors.items():
        path = incoming / f"{stem}.safetensors"
        plain = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
        try:
            save_file(plain, path)
        except SafetensorError as problem:
            raise to_os_error(problem, path) from None
        # safetensors makes files private, whatever the user's umask is.
        shutil.copymode(incoming / CURSOR, path)
        fsync(path)
    return {path.name: _checksum(path) for path in sorted(incoming.iterdir())}


def _manifest(path: Path) -> Manifest:
    """Read and verify a manifest."""
    body = read_object(path)
    checksum = body.pop("crc32", None)
    if checksum != _body_checksum(body):
        raise UserError(f"{path} is damaged")
    if body.get("format") != FORMAT:
        raise UserError(f"{path} is not a checkpoint manifest of format {FORMAT}")
    with damage_named(path):
        return cast("Manifest", conform(body, Manifest))


def _body_checksum(body: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True).encode("utf-8"))


def _verify(path: Path, files: Mapping[str, Sums]) -> None:
    for file, written in files.items():
        if not (path / file).is_file():
            raise UserError(f"{path / file} is missing")
        if _checksum(path / file) != written:
            raise UserError(f"{path / file} is damaged")


def _checksum(path: Path) -> Sums:
    # CRC-32 detects truncation and flipped bits at gigabytes per second; forgery is not a concern.
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


def is_intact(folder: Path, name: str) -> bool:
    """Whether a checkpoint is there and its files have their checksums."""
    path = locate(folder, name)
    try:
        if path is not None:
            _verify(path, _manifest(path / MANIFEST)["files"])
            read_document(path / CURSOR, Position)
    except (UserError, OSError):
        return False
    return path is not None


def _others(folder: Path, damaged: str = "") -> str:
    names = [name for name in list_names(folder) if name != damaged and is_intact(folder, name)]
    return f"; available checkpoints: {', '.join(names)}" if names else ""
