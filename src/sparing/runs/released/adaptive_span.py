"""Checkpoints of the original Adaptive Span: a dict with the state dict as `model`."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from sparing.data.vocab import SymbolVocab
from sparing.errors import UserError
from sparing.models.adaptive_span.config import AdaptiveSpanConfig
from sparing.runs.config import RunConfig
from sparing.runs.folder import RunFolder
from sparing.runs.recipes import recipe
from sparing.runs.released.alphabets import ALPHABETS, Alphabet
from sparing.runs.released.convert import (
    NUMBERED,
    check_fit,
    check_out,
    count_layers,
    reorder_rows,
    save_run,
    shape_of,
)
from sparing.runs.released.reader import check_tensors, memory_limit, read_tensors

PROGRAM = "Adaptive Span"
STEPS = 1000
"""Optimizer steps in one iteration of the original."""
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
SKIPPED = ("mask_template", "persistent_memory.adaptive_span._mask.current_val")
"""A constant, and a second name of a parameter."""


def import_adaptive_span(
    file: Path, out: Path, provenance: Mapping[str, Any], *, max_bytes: int | None = None
) -> RunFolder:
    """Convert a checkpoint of the original Adaptive Span to a run that evaluates and generates.

    `max_bytes` limits the size of its tensors; None: half of the free memory.
    """
    check_out(out)
    limit = memory_limit(max_bytes)
    stored = read_tensors(file, limit)
    theirs = _weights(file, stored, limit)
    config = _config(file, theirs)
    alphabet = _alphabet(file, config.vocab_size)
    run = _run(config, alphabet)
    weights = reorder_rows(_rename(file, theirs, config), alphabet.theirs, alphabet.ours)
    check_fit(file, run, weights)
    about = {**provenance, "imported": file.name, "step": _steps(stored)}
    return save_run(out, run, weights, SymbolVocab(alphabet.ours), about)


def _weights(file: Path, stored: Mapping[str, Any], limit: int) -> dict[str, Tensor]:
    """The model's tensors under the original's names, without its wrapper's prefix."""
    model = stored.get("model")
    if not isinstance(model, Mapping) or not model:
        raise UserError(f"{file} has no `model`; is it a checkpoint of {PROGRAM}?")
    check_tensors(file, model, limit)
    return {
        name.removeprefix("module."): tensor
        for name, tensor in model.items()
        if not name.endswith(SKIPPED)
    }


def _config(file: Path, weights: Mapping[str, Tensor]) -> AdaptiveSpanConfig:
    """Sizes from the tensor shapes, and everything else from the original's scripts."""
    table = shape_of(file, weights, "in_emb.weight", 2, PROGRAM)
    _, head_dim, limit = shape_of(file, weights, "key_pe", 3, PROGRAM)
    spans = shape_of(
        file, weights, "layers.0.attn.attn.adaptive_span._mask.current_val", 3, PROGRAM
    )
    wide = weights.get("layers.0.ff.fc1.weight")
    fixed = weights.get("layers.0.attn.attn.persistent_memory.key")
    depth = count_layers(file, weights)
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
        layer = NUMBERED.fullmatch(name)
        known = NAMES.get(layer[2]) if layer else TOP.get(name)
        if known is None:
            raise UserError(f"{file}: {name:.80} is unknown to Adaptive Span")
        ours = f"blocks.{int(layer[1])}.{known}" if layer else known
        shape = {"position": (-1, config.span_limit), "ratio": (-1,)}.get(known.split(".")[-1])
        renamed[ours] = tensor.float().reshape(shape or tensor.shape)
    return renamed


def _steps(stored: Mapping[str, Any]) -> int:
    iterations = stored.get("iter_no", 0)
    sound = isinstance(iterations, int) and 0 <= iterations < 10**9
    return STEPS * iterations if sound else 0
