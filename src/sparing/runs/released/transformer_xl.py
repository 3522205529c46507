"""Checkpoints of the original Transformer-XL in PyTorch: a pickled module, or its state dict."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from sparing.data.vocab import SymbolVocab
from sparing.errors import UserError
from sparing.models.transformer_xl.config import TransformerXLConfig
from sparing.runs.config import RunConfig
from sparing.runs.folder import RunFolder
from sparing.runs.recipes.transformer_xl import (
    enwik8_transformer_xl,
    enwik8_transformer_xl_large,
)
from sparing.runs.released.alphabets import ENWIK8_BY_FREQUENCY, ENWIK8_BY_FREQUENCY_IN_TRAIN
from sparing.runs.released.convert import (
    NUMBERED,
    check_fit,
    check_out,
    count_layers,
    reorder_rows,
    save_run,
    shape_of,
)
from sparing.runs.released.reader import Released, memory_limit, read_module

PROGRAM = "Transformer-XL"
OURS = ENWIK8_BY_FREQUENCY_IN_TRAIN.replace(b"\n", b"")
"""How we number the bytes of enwik8 without newlines."""
NAMES = {
    "dec_attn.o_net.weight": "attend.attention.output.weight",
    "dec_attn.r_net.weight": "attend.attention.position.weight",
    "dec_attn.layer_norm.weight": "attend.norm.weight",
    "dec_attn.layer_norm.bias": "attend.norm.bias",
    "pos_ff.CoreNet.0.weight": "feed_forward.widen.weight",
    "pos_ff.CoreNet.0.bias": "feed_forward.widen.bias",
    "pos_ff.CoreNet.3.weight": "feed_forward.narrow.weight",
    "pos_ff.CoreNet.3.bias": "feed_forward.narrow.bias",
    "pos_ff.layer_norm.weight": "feed_forward.norm.weight",
    "pos_ff.layer_norm.bias": "feed_forward.norm.bias",
}
TABLE = "word_emb.emb_layers.0.weight"
TOP = {
    TABLE: "embedding.weight",
    "crit.out_layers.0.bias": "head.bias",
    "r_w_bias": "bias.content",
    "r_r_bias": "bias.position",
}
SKIPPED = ("pos_emb.inv_freq", "crit.out_layers.0.weight")
"""A constant, and a second name of the embedding."""


def import_transformer_xl(
    file: Path, out: Path, provenance: Mapping[str, Any], *, max_bytes: int | None = None
) -> RunFolder:
    """Convert a checkpoint of the original for enwik8 to a run that evaluates and generates.

    `max_bytes` limits the size of its tensors; None: half of the free memory.
    """
    check_out(out)
    released = read_module(file, memory_limit(max_bytes))
    run = _run(file, released)
    weights = reorder_rows(_rename(file, released.tensors), ENWIK8_BY_FREQUENCY, OURS)
    check_fit(file, run, weights)
    about = {**provenance, "imported": file.name}
    return save_run(out, run, weights, SymbolVocab(OURS), about)


def _run(file: Path, released: Released) -> RunConfig[TransformerXLConfig]:
    weights = released.tensors
    symbols, dim = shape_of(file, weights, TABLE, 2, PROGRAM)
    heads, head_dim = shape_of(file, weights, "r_w_bias", 2, PROGRAM)
    ff_dim, _ = shape_of(file, weights, "layers.0.pos_ff.CoreNet.0.weight", 2, PROGRAM)
    if symbols != len(ENWIK8_BY_FREQUENCY):
        known = f"enwik8 with {len(ENWIK8_BY_FREQUENCY)}"
        raise UserError(f"{file} has {symbols} symbols; known is {known}")
    depth = count_layers(file, weights)
    base = enwik8_transformer_xl_large() if depth > 12 else enwik8_transformer_xl()
    clamp = released.integer("clamp_len", -1)
    norm: Literal["post", "pre"] = "pre" if released.attributes.get("pre_lnorm") is True else "post"
    try:
        model = replace(
            base.model,
            vocab_size=symbols,
            dim=dim,
            depth=depth,
            heads=heads,
            head_dim=head_dim,
            ff_dim=ff_dim,
            memory=released.integer("mem_len", base.model.memory),
            clamp=clamp if clamp > 0 else None,
            same_length=released.attributes.get("same_length") is True,
            norm=norm,
        )
    except ValueError as problem:
        raise UserError(f"{file}: {problem}") from None
    return replace(base, model=model)


def _rename(file: Path, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    renamed = {}
    for name, tensor in weights.items():
        layer = NUMBERED.fullmatch(name)
        if name in SKIPPED:
            continue
        if name in TOP:
            renamed[TOP[name]] = tensor.float()
        elif layer and layer[2] in NAMES:
            renamed[f"blocks.{int(layer[1])}.{NAMES[layer[2]]}"] = tensor.float()
        elif layer and layer[2] == "dec_attn.qkv_net.weight" and len(tensor) % 3 == 0:
            for part, rows in zip(("query", "key", "value"), tensor.float().chunk(3), strict=True):
                renamed[f"blocks.{int(layer[1])}.attend.attention.{part}.weight"] = rows
        else:
            raise UserError(f"{file}: {name:.80} is unknown to {PROGRAM} for enwik8")
    return renamed
