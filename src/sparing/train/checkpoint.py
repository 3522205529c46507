"""Checkpoints: safetensors and JSON, checksummed, swapped in whole; no pickle.

A checkpoint is first written to `incoming`, then `last` becomes `previous` and `incoming` becomes
`last`. Killed at any moment, the folder still holds a complete checkpoint.
"""

import json
import shutil
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from sparing.errors import UserError
from sparing.files import read_json, sync, write_json

FORMAT = 1
MANIFEST, CURSOR = "manifest.json", "cursor.json"


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
    incoming = folder / f"incoming-{name}"
    shutil.rmtree(incoming, ignore_errors=True)
    incoming.mkdir(parents=True)
    for stem, tensors in checkpoint.tensors.items():
        plain = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
        save_file(plain, incoming / f"{stem}.safetensors")
        sync(incoming / f"{stem}.safetensors")
    write_json(incoming / CURSOR, checkpoint.cursor)
    sums = {path.name: _checksum(path) for path in sorted(incoming.iterdir())}
    write_json(incoming / MANIFEST, {"format": FORMAT, "identity": identity, "files": sums})
    _swap_in(folder, name, incoming)


def load(folder: Path, name: str, identity: Mapping[str, Any], device: str = "cpu") -> Checkpoint:
    """Read and verify `folder/name`; it must have been written for the same `identity`."""
    path = verified(folder, name, identity)
    try:
        tensors = {
            file.stem: load_file(file, device=device) for file in sorted(path.glob("*.safetensors"))
        }
    except SafetensorError as problem:
        raise UserError(f"{path} cannot be read: {problem}") from None
    return Checkpoint(tensors, read_json(path / CURSOR))


def verified(folder: Path, name: str, identity: Mapping[str, Any]) -> Path:
    """The path of a checkpoint whose every file is as it was written."""
    path = located(folder, name)
    if path is None:
        raise UserError(f"there is no checkpoint {folder / name}{_others(folder)}")
    manifest = read_json(path / MANIFEST)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise UserError(f"{path / MANIFEST} is not a checkpoint manifest of format {FORMAT}")
    for file, written in manifest["files"].items():
        if not (path / file).is_file():
            raise UserError(f"{path / file} is missing{_others(folder, name)}")
        if _checksum(path / file) != written:
            raise UserError(f"{path / file} is damaged{_others(folder, name)}")
    _same_identity(path, manifest["identity"], identity)
    return path


def exists(folder: Path, name: str = "last") -> bool:
    """Whether there is a checkpoint of that name."""
    return located(folder, name) is not None


def located(folder: Path, name: str) -> Path | None:
    """Where a checkpoint lies: under its name, or where a kill between two renames left it."""
    if (folder / name).is_dir():
        return folder / name
    if (folder / f"incoming-{name}" / MANIFEST).is_file():
        return folder / f"incoming-{name}"
    retired = folder / f"retired-{name}"
    return retired if retired.is_dir() else None


def _swap_in(folder: Path, name: str, incoming: Path) -> None:
    current, retired, trash = (folder / stem for stem in (name, f"retired-{name}", "trash"))
    shutil.rmtree(retired, ignore_errors=True)
    if current.is_dir():
        current.rename(retired)
    incoming.rename(current)
    sync(folder)
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


def _same_identity(path: Path, written: Any, wanted: Mapping[str, Any]) -> None:
    if written == json.loads(json.dumps(wanted)):
        return
    differing = [
        f"{key} is {written.get(key)!r} there and {wanted.get(key)!r} here"
        for key in sorted(written.keys() | wanted.keys())
        if written.get(key) != json.loads(json.dumps(wanted.get(key)))
    ]
    raise UserError(f"{path} belongs to another model: {differing[0]}")


def _others(folder: Path, but: str = "") -> str:
    names = [
        name for name in ("last", "previous", "best") if name != but and (folder / name).is_dir()
    ]
    return f"; still there: {', '.join(names)} (choose with --checkpoint)" if names else ""
