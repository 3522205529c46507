"""Import released checkpoints of other programs as run folders.

The only place that opens pickled files: as tensors and plain containers, never as code.
"""

import os
import re
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any
from warnings import catch_warnings

import torch
from torch import Tensor

from sparing.data.vocab import SymbolVocab
from sparing.device import free_ram_bytes, limit_to_free_ram
from sparing.errors import UserError
from sparing.files import lock_folder
from sparing.inputs import open_regular
from sparing.models.adaptive_span import AdaptiveSpanConfig
from sparing.runs.build import build_model
from sparing.runs.config import RunConfig
from sparing.runs.folder import RunFolder, create, refuse_used_folder
from sparing.runs.recipes import recipe
from sparing.training import checkpoint
from sparing.training.capture import model_tensors
from sparing.training.checkpoint import Checkpoint
from sparing.training.state import Counters
from sparing.units import format_bytes

STEPS = 1000
"""Optimizer steps in one iteration of the original."""
LAYER = re.compile(r"layers\.(\d{1,4})\.(.+)")
NAMES = {
    "attn.attn.adaptive_span._mask.current_val": "span.ratio",
    "attn.attn.persistent_memory.key": "attention.persistent.keys",
    "attn.attn.persistent_memory.val": "attention.persistent.values",
    "attn.proj_query.weight": "attention.query.weight",
    "attn.proj_key.weight": "attention.key.weight",
    "attn.proj_val.weight": "attention.value.weight",
    "attn.proj_out.weight": "attention.out.weight",
    "norm1.weight": "norm_attention.weight",
    "norm1.bias": "norm_attention.bias",
    "norm2.weight": "norm_feed.weight",
    "norm2.bias": "norm_feed.bias",
    "ff.fc1.weight": "feed.0.weight",
    "ff.fc1.bias": "feed.0.bias",
    "ff.fc2.weight": "feed.3.weight",
    "ff.fc2.bias": "feed.3.bias",
}
TOP = {
    "key_pe": "position",
    "in_emb.weight": "embedding.weight",
    "out_emb.weight": "head.weight",
    "out_emb.bias": "head.bias",
}
PLAIN = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SKIPPED = ("mask_template", "persistent_memory.adaptive_span._mask.current_val")
"""A constant, and a second name of a parameter."""


@dataclass(frozen=True, slots=True)
class Alphabet:
    """A corpus, the ids in the released models, and the ids here."""

    corpus: str
    theirs: bytes
    """Symbols in the order of the rows in the file; a newline is the original's `<eos>`."""
    ours: bytes
    """The order in which `data.symbol_order=appearance` numbers the prepared text."""


ENWIK8 = bytes.fromhex(
    "3c6d65646961776b20786c6e733d226874703a2f2e6f72672d30333231584d4c5363763e0a6657625f503679545534"
    "35493738394843415a754a235245445b5d7b7d462a277c6a26713b7a2c4728294f4b56424ec3a93f59aaa2a0b35121"
    "e280947e93a125d984d8a7b7888ad090bdb0d185b8bcaf8cb2a6dbd7a89b99969de38283adbaec95eb98eda4e0a5b1"
    "97b4b9c59fe6bfe59ce4bb89c4ab2b9e8fe1a3e887e9e7ae818dc2b5beac91b68b8ec9ca5c86249acfce09da92c740"
    "d2d6cceacb5e60c6d4d5efd3dccdf0c8de"
)
TEXT8 = b"anrchism ogtedfbulywkvpjzqx"
ALPHABETS = {
    len(ENWIK8): Alphabet("enwik8", ENWIK8, ENWIK8),
    # The original strips the first space of text8, and ends the text with one <eos>.
    len(TEXT8) + 1: Alphabet("text8", TEXT8 + b"\n", b" " + TEXT8.replace(b" ", b"") + b"\n"),
}


def import_adaptive_span(
    file: Path, out: Path, provenance: Mapping[str, Any], *, max_bytes: int | None = None
) -> RunFolder:
    """Convert a checkpoint of the original Adaptive Span to a run that evaluates and generates.

    `max_bytes` limits the size of its tensors; None: half of the free memory.
    """
    # A lone `best` may be what a killed import has left.
    refuse_used_folder(out, besides=["best"])
    limit = free_ram_bytes() // 2 if max_bytes is None else max_bytes
    stored = read_tensors(file, limit)
    theirs = _weights(file, stored, limit)
    config = _config(file, theirs)
    alphabet = _alphabet(file, config.vocab_size)
    run = _run(config, alphabet)
    weights = _reorder_rows(_rename(file, theirs, config), alphabet)
    _check_fit(file, run, weights)
    progress = Counters(step=_steps(stored))
    cursor = asdict(progress) | {"cursor": list(progress.cursor), "loss_scale": [1.0, 0]}
    with lock_folder(out):
        saved = Checkpoint({"model": weights}, cursor)
        checkpoint.save(RunFolder(out).checkpoints, "best", saved, run.identity())
        return create(out, run, SymbolVocab(alphabet.ours), {**provenance, "imported": file.name})


def read_tensors(file: Path, limit: int) -> Mapping[str, Any]:
    """The outermost dict of a file written by torch, in the old or new format; runs no code."""
    try:
        with open_regular(file) as handle, limit_to_free_ram(), catch_warnings(action="ignore"):
            _check_size(file, _unpacked_bytes(handle), limit)
            stored = torch.load(handle, map_location="cpu", weights_only=True)
    except (UserError, OSError):
        raise
    except Exception as problem:
        # An untrusted file can fail in any way; to the user it is the same error.
        why = type(problem).__name__
        raise UserError(
            f"{file} cannot be read safely as a torch checkpoint of plain tensors ({why})"
        ) from None
    if not isinstance(stored, Mapping):
        raise UserError(f"{file} holds a {type(stored).__name__}, not a checkpoint")
    return stored


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


def _weights(file: Path, stored: Mapping[str, Any], limit: int) -> dict[str, Tensor]:
    """The model's tensors under the original's names, without its wrapper's prefix."""
    model = stored.get("model")
    if not isinstance(model, Mapping) or not model:
        raise UserError(f"{file} has no `model`; is it a checkpoint of Adaptive Span?")
    weights, size_bytes = {}, 0
    for name, tensor in model.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise UserError(f"{file}: `model` must hold tensors by name, not {name!r:.60}")
        if tensor.layout != torch.strided or tensor.is_meta or tensor.dtype not in PLAIN:
            raise UserError(f"{file}: {name:.60} is not a tensor of plain numbers")
        # A few stored numbers may be repeated into a tensor of any size.
        size_bytes += tensor.numel() * torch.float32.itemsize
        _check_size(file, size_bytes, limit)
        if not tensor.isfinite().all():
            raise UserError(f"{file}: {name:.60} has numbers that are not finite")
        if not name.endswith(SKIPPED):
            weights[name.removeprefix("module.")] = tensor
    return weights


def _config(file: Path, weights: Mapping[str, Tensor]) -> AdaptiveSpanConfig:
    """Sizes from the tensor shapes, and everything else from the original's scripts."""
    table = _shape(file, weights, "in_emb.weight", 2)
    _, head_dim, limit = _shape(file, weights, "key_pe", 3)
    spans = _shape(file, weights, "layers.0.attn.attn.adaptive_span._mask.current_val", 3)
    wide = weights.get("layers.0.ff.fc1.weight")
    fixed = weights.get("layers.0.attn.attn.persistent_memory.key")
    depth = _depth(file, weights)
    if spans[0] * head_dim != table[1]:
        raise UserError(f"{file}: {spans[0]} heads of {head_dim} do not make a width of {table[1]}")
    try:
        return AdaptiveSpanConfig(
            vocab_size=table[0],
            dim=table[1],
            depth=depth,
            heads=spans[0],
            ff_dim=4 * table[1] if wide is None else wide.size(0),
            persistent=0 if fixed is None else fixed.size(-1),
            span_limit=limit,
            dropout=0.4 if depth > 18 else 0.3,
            span_penalty=5e-7 if fixed is None else 1e-7,
        )
    except (ValueError, IndexError) as problem:
        raise UserError(f"{file}: {problem}") from None


def _depth(file: Path, weights: Mapping[str, Tensor]) -> int:
    layers = {int(found[1]) for name in weights if (found := LAYER.fullmatch(name))}
    if layers != set(range(len(layers))):
        raise UserError(f"{file}: layers are missing between 0 and {max(layers)}")
    return len(layers)


def _shape(file: Path, weights: Mapping[str, Tensor], name: str, axes: int) -> tuple[int, ...]:
    if name not in weights:
        raise UserError(f"{file} has no {name}; is it a checkpoint of Adaptive Span?")
    if weights[name].ndim != axes:
        raise UserError(f"{file}: {name} has {weights[name].ndim} axes, not {axes}")
    return tuple(weights[name].shape)


def _alphabet(file: Path, size: int) -> Alphabet:
    if size not in ALPHABETS:
        known = ", ".join(f"{each.corpus} with {n}" for n, each in ALPHABETS.items())
        raise UserError(f"{file} has {size} symbols; known are {known}")
    return ALPHABETS[size]


def _run(config: AdaptiveSpanConfig, alphabet: Alphabet) -> RunConfig:
    size = "_large" if config.depth > 12 and not config.persistent else ""
    return replace(recipe(f"{alphabet.corpus}_adaptive_span{size}"), model=config)


def _rename(
    file: Path, weights: Mapping[str, Tensor], config: AdaptiveSpanConfig
) -> dict[str, Tensor]:
    renamed = {}
    for name, tensor in weights.items():
        layer = LAYER.fullmatch(name)
        known = NAMES.get(layer[2]) if layer else TOP.get(name)
        if known is None:
            raise UserError(f"{file}: {name:.80} is unknown to Adaptive Span")
        ours = f"blocks.{int(layer[1])}.{known}" if layer else known
        shape = {"position": (-1, config.span_limit), "ratio": (-1,)}.get(known.split(".")[-1])
        renamed[ours] = tensor.float().reshape(shape or tensor.shape)
    return renamed


def _reorder_rows(weights: dict[str, Tensor], alphabet: Alphabet) -> dict[str, Tensor]:
    """Put the rows of the embedding and the softmax in the order of our ids."""
    rows = torch.tensor([alphabet.theirs.index(symbol) for symbol in alphabet.ours])
    tables: dict[str, Tensor] = {
        name: weights[name][rows]
        for name in ("embedding.weight", "head.weight", "head.bias")
        if name in weights and weights[name].size(0) == len(rows)
    }
    return {**weights, **tables}


def _check_fit(file: Path, run: RunConfig, weights: Mapping[str, Tensor]) -> None:
    wanted = model_tensors(build_model(run, "meta"))
    if odd := sorted(wanted.keys() ^ weights.keys()):
        where = "is missing" if odd[0] in wanted else "is not part of the model"
        raise UserError(f"{file}: {odd[0]} {where}")
    for name, tensor in wanted.items():
        if tensor.shape != weights[name].shape:
            shapes = f"{tuple(weights[name].shape)}, not {tuple(tensor.shape)}"
            raise UserError(f"{file}: {name} is {shapes}")


def _steps(stored: Mapping[str, Any]) -> int:
    iterations = stored.get("iter_no", 0)
    sound = isinstance(iterations, int) and 0 <= iterations < 10**9
    return STEPS * iterations if sound else 0
