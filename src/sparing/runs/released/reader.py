"""Read the files of other programs: the only place that opens pickled files.

Tensors and plain containers are read as they are. Whatever else a file names, a class or a
function, becomes an `Inert` object that keeps attributes and does nothing: no code is run.
"""

import os
import pickle
import tarfile
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any
from warnings import catch_warnings

import torch
from torch import Tensor, _utils

from sparing.device import free_ram_bytes, limit_to_free_ram
from sparing.errors import UserError
from sparing.inputs import open_regular
from sparing.units import format_bytes

PLAIN = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
DEEPEST = 32
"""Modules within modules; a real model has about six, a file may contain itself."""


class Inert:
    """Stands for any class or function that a file names."""

    dump_patches = False

    def __new__(cls, *_: Any, **__: Any) -> "Inert":
        """Accept and drop any arguments."""
        return object.__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __setstate__(self, state: Any) -> None:
        """Keep the attributes of the original object."""
        if isinstance(state, dict):
            self.__dict__.update(state)


ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor"): _utils._rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _utils._rebuild_tensor_v2,
    ("torch._utils", "_rebuild_parameter"): _utils._rebuild_parameter,
}
"""All that is ever called with data from a file."""


class GuardedUnpickler(pickle.Unpickler):
    """Finds nothing but what `ALLOWED` lists."""

    def find_class(self, module: str, name: str) -> Any:
        """Return an allowed function, or `Inert` for everything else."""
        return ALLOWED.get((module, name), Inert)


def _guarded_load(handle: IO[bytes], **options: Any) -> Any:
    return GuardedUnpickler(handle, **options).load()


GUARDED_PICKLE = SimpleNamespace(
    Unpickler=GuardedUnpickler, load=_guarded_load, __name__="guarded_pickle"
)
"""What torch takes in place of the module `pickle`."""


@dataclass(frozen=True, slots=True)
class Released:
    """A model from a file: tensors by the original's names and, of whole modules, attributes."""

    tensors: dict[str, Tensor]
    attributes: Mapping[str, Any]

    def integer(self, name: str, default: int) -> int:
        """An attribute of the original's module, where the file has it."""
        value = self.attributes.get(name, default)
        return value if isinstance(value, int) else default


def memory_limit(max_bytes: int | None) -> int:
    """Return `max_bytes`; None: half of the free memory."""
    return free_ram_bytes() // 2 if max_bytes is None else max_bytes


def read_tensors(file: Path, limit: int) -> Mapping[str, Any]:
    """The outermost dict of a file written by torch, in the old or new format; runs no code."""
    stored = _read(file, limit, lambda handle: torch.load(handle, "cpu", weights_only=True))
    if not isinstance(stored, Mapping):
        raise UserError(f"{file} holds a {type(stored).__name__}, not a checkpoint")
    return stored


def read_module(file: Path, limit: int) -> Released:
    """The model of a file that holds a whole module, `[module, ...]`, or a state dict."""
    stored = _read(file, limit, _load_guarded)
    root = stored[0] if isinstance(stored, list | tuple) and stored else stored
    if isinstance(root, Inert):
        # The wrapper of several GPUs.
        inner = _children(root).get("module")
        root = inner if isinstance(inner, Inert) else root
        found = Released(dict(_module_tensors(root)), vars(root))
    elif isinstance(root, Mapping):
        found = Released(_without_prefix(root), {})
    else:
        raise UserError(f"{file} holds a {type(root).__name__}, not a model")
    check_tensors(file, found.tensors, limit)
    return found


def check_tensors(file: Path, tensors: Mapping[Any, Any], limit: int) -> None:
    """Raise a UserError unless these are finite floating-point tensors within the limit."""
    if not tensors:
        raise UserError(f"{file} holds no tensors")
    size_bytes = 0
    for name, tensor in tensors.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise UserError(f"{file}: a model must hold tensors by name, not {name!r:.60}")
        if tensor.layout != torch.strided or tensor.is_meta or tensor.dtype not in PLAIN:
            raise UserError(f"{file}: {name:.60} is not a tensor of plain numbers")
        # A few stored numbers may be repeated into a tensor of any size.
        size_bytes += tensor.numel() * torch.float32.itemsize
        _check_size(file, size_bytes, limit)
        if not tensor.isfinite().all():
            raise UserError(f"{file}: {name:.60} has numbers that are not finite")


def _read(file: Path, limit: int, load: Callable[[IO[bytes]], Any]) -> Any:
    try:
        with open_regular(file) as handle, limit_to_free_ram(), catch_warnings(action="ignore"):
            _check_size(file, _unpacked_bytes(handle), limit)
            return load(handle)
    except (UserError, OSError):
        raise
    except Exception as problem:
        # An untrusted file can fail in any way; to the user it is the same error.
        why = type(problem).__name__
        raise UserError(
            f"{file} cannot be read safely as a torch checkpoint of plain tensors ({why})"
        ) from None


def _load_guarded(handle: IO[bytes]) -> Any:
    # For these two torch has readers of its own, which do not ask our unpickler.
    if tarfile.is_tarfile(handle) or _is_torchscript(handle):
        raise pickle.UnpicklingError
    handle.seek(0)
    return torch.load(handle, "cpu", pickle_module=GUARDED_PICKLE, weights_only=False)


def _is_torchscript(handle: IO[bytes]) -> bool:
    handle.seek(0)
    if not zipfile.is_zipfile(handle):
        return False
    with zipfile.ZipFile(handle) as archive:
        return any(name.endswith("constants.pkl") for name in archive.namelist())


def _unpacked_bytes(handle: IO[bytes]) -> int:
    """The size of a file; of an archive, that of its members as they are unpacked."""
    size_bytes = handle.seek(0, os.SEEK_END)
    if zipfile.is_zipfile(handle):
        with zipfile.ZipFile(handle) as archive:
            size_bytes = max(size_bytes, sum(each.file_size for each in archive.infolist()))
    handle.seek(0)
    return size_bytes


def _check_size(file: Path, size_bytes: int, limit: int) -> None:
    if size_bytes > limit:
        raise UserError(
            f"{file} unpacks to {format_bytes(size_bytes)}, above the limit of "
            f"{format_bytes(limit)}; allow more with --max-bytes"
        )


def _children(module: Inert) -> Mapping[Any, Any]:
    children = vars(module).get("_modules")
    return children if isinstance(children, Mapping) else {}


def _module_tensors(module: Inert, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Parameters and buffers under the names that a state dict gives them."""
    if depth > DEEPEST:
        raise UserError(f"modules are nested more than {DEEPEST} deep")
    for kind in ("_parameters", "_buffers"):
        held = vars(module).get(kind)
        for name, tensor in held.items() if isinstance(held, Mapping) else ():
            if tensor is not None:
                yield f"{prefix}{name}", tensor
    for name, child in _children(module).items():
        if isinstance(child, Inert):
            yield from _module_tensors(child, f"{prefix}{name}.", depth + 1)


def _without_prefix(tensors: Mapping[Any, Any]) -> dict[Any, Any]:
    return {
        name.removeprefix("module.") if isinstance(name, str) else name: tensor
        for name, tensor in tensors.items()
    }
