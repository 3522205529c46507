"""Checkpoints of the original SHA-RNN: a pickled list of the model and its loss."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from sparing.data.vocab import SymbolVocab
from sparing.errors import UserError
from sparing.models.sha_rnn.config import SHARNNConfig
from sparing.runs.config import RunConfig
from sparing.runs.folder import RunFolder
from sparing.runs.recipes.sha_rnn import enwik8_sha_rnn
from sparing.runs.released.alphabets import ENWIK8_BY_FREQUENCY_IN_TRAIN
from sparing.runs.released.convert import (
    NUMBERED,
    check_fit,
    check_out,
    count_layers,
    save_run,
    shape_of,
)
from sparing.runs.released.reader import Released, memory_limit, read_module

PROGRAM = "SHA-RNN"
NAMES = {
    "lnstart": "norm",
    "rnn": "core.cell",
    "lnmid": "attend.norm_query",
    "lnmem": "attend.norm_memory",
    "lnff": "expand.norm_skip",
    "lnxff": "expand.norm_input",
    "ff.linear1": "expand.boom.widen",
    "attn.qln": "attend.attention.query_norm",
    "attn.qs": "attend.attention.query_gate.logit",
    "attn.ks": "attend.attention.key_gate.logit",
    "attn.vs": "attend.attention.value_gate.logit",
    "attn.vq.l1": "attend.attention.value_gate.mix",
    "attn.q": "attend.attention.query",
}
TOP = {"encoder.weight": "embedding.weight", "decoder.bias": "head.bias"}
UNUSED = ("attn.qkvs", "attn.r_gate")
"""Parameters of the original that its own forward pass never reads."""
VECTORS = ("attn.qs", "attn.ks", "attn.vs")


def import_sha_rnn(
    file: Path, out: Path, provenance: Mapping[str, Any], *, max_bytes: int | None = None
) -> RunFolder:
    """Convert a checkpoint of the original SHA-RNN to a run that evaluates and generates.

    `max_bytes` limits the size of its tensors; None: half of the free memory.
    """
    check_out(out)
    released = read_module(file, memory_limit(max_bytes))
    run = _run(file, released)
    _check_tied(file, released.tensors)
    weights = _rename(file, released.tensors, run.model.attention_at)
    check_fit(file, run, weights)
    about = {**provenance, "imported": file.name}
    return save_run(out, run, weights, SymbolVocab(ENWIK8_BY_FREQUENCY_IN_TRAIN), about)


def _run(file: Path, released: Released) -> RunConfig[SHARNNConfig]:
    weights, base = released.tensors, enwik8_sha_rnn()
    symbols, dim = shape_of(file, weights, "encoder.weight", 2, PROGRAM)
    boom_dim, _ = shape_of(file, weights, "blocks.0.ff.linear1.weight", 2, PROGRAM)
    if symbols != len(ENWIK8_BY_FREQUENCY_IN_TRAIN):
        known = f"enwik8 with {len(ENWIK8_BY_FREQUENCY_IN_TRAIN)}"
        raise UserError(f"{file} has {symbols} symbols; known is {known}")
    depth = count_layers(file, weights)
    try:
        model = SHARNNConfig(
            vocab_size=symbols,
            dim=dim,
            depth=depth,
            boom_dim=boom_dim,
            attention_at=tuple(i for i in range(depth) if f"blocks.{i}.attn.q.weight" in weights),
            memory=released.integer("num_max_positions", SHARNNConfig(vocab_size=1).memory),
        )
    except ValueError as problem:
        raise UserError(f"{file}: {problem}") from None
    return replace(base, model=model)


def _check_tied(file: Path, weights: Mapping[str, Tensor]) -> None:
    decoder = weights.get("decoder.weight")
    if decoder is not None and not decoder.equal(weights["encoder.weight"]):
        raise UserError(f"{file}: the softmax does not share the embedding's weights")


def _rename(
    file: Path, weights: Mapping[str, Tensor], attention_at: tuple[int, ...]
) -> dict[str, Tensor]:
    renamed = {}
    for name, tensor in weights.items():
        if name == "decoder.weight" or name.endswith(UNUSED):
            continue
        if name in TOP:
            renamed[TOP[name]] = tensor.float()
            continue
        block = NUMBERED.fullmatch(name)
        old = next((each for each in NAMES if _begins(block[2], each)), None) if block else None
        if block is None or old is None:
            raise UserError(f"{file}: {name:.80} is unknown to {PROGRAM}")
        layer, rest = int(block[1]), block[2].removeprefix(old)
        # The original makes these norms in every block and uses them where there is attention.
        if old in ("lnmid", "lnmem") and layer not in attention_at:
            continue
        value = tensor.float().flatten() if old in VECTORS else tensor.float()
        renamed[f"blocks.{layer}.{NAMES[old]}{rest}"] = value
    return renamed


def _begins(name: str, module: str) -> bool:
    return name == module or name.startswith(f"{module}.")
