"""What all conversions share: sizes from shapes, a check of every tensor, and the run folder."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparing.data.vocab import Vocab
from sparing.errors import UserError
from sparing.files import lock_folder
from sparing.runs.build import build_model
from sparing.runs.config import RunConfig
from sparing.runs.folder import RunFolder, create, refuse_used_folder
from sparing.training import checkpoint
from sparing.training.capture import model_tensors
from sparing.training.checkpoint import Checkpoint
from sparing.training.state import Counters

NUMBERED = re.compile(r"(?:layers|blocks)\.(\d{1,4})\.(.+)")


def check_out(out: Path) -> None:
    """Raise a UserError if there is a run already; a killed import may have left a `best`."""
    refuse_used_folder(out, besides=["best"])


def count_layers(file: Path, names: Iterable[str]) -> int:
    """Count the layers that tensor names mention, and check that none is missing."""
    layers = {int(found[1]) for name in names if (found := NUMBERED.fullmatch(name))}
    if layers != set(range(len(layers))):
        raise UserError(f"{file}: layers are missing between 0 and {max(layers)}")
    return len(layers)


def shape_of(
    file: Path, weights: Mapping[str, Tensor], name: str, axes: int, program: str
) -> tuple[int, ...]:
    """The shape of a tensor that must be there."""
    if name not in weights:
        raise UserError(f"{file} has no {name}; is it a checkpoint of {program}?")
    if weights[name].ndim != axes:
        raise UserError(f"{file}: {name} has {weights[name].ndim} axes, not {axes}")
    return tuple(weights[name].shape)


def reorder_rows(weights: Mapping[str, Tensor], theirs: bytes, ours: bytes) -> dict[str, Tensor]:
    """Put the rows of the embedding and the softmax in the order of our ids."""
    rows = torch.tensor([theirs.index(symbol) for symbol in ours])
    tables = {
        name: weights[name][rows]
        for name in ("embedding.weight", "head.weight", "head.bias")
        if name in weights and len(weights[name]) == len(rows)
    }
    return {**weights, **tables}


def check_fit(file: Path, run: RunConfig, weights: Mapping[str, Tensor]) -> None:
    """Raise a UserError unless these are exactly the tensors of the run's model."""
    wanted = model_tensors(build_model(run, "meta"))
    if odd := sorted(wanted.keys() ^ weights.keys()):
        where = "is missing" if odd[0] in wanted else "is not part of the model"
        raise UserError(f"{file}: {odd[0]} {where}")
    for name, tensor in wanted.items():
        if tensor.shape != weights[name].shape:
            shapes = f"{tuple(weights[name].shape)}, not {tuple(tensor.shape)}"
            raise UserError(f"{file}: {name} is {shapes}")


def save_run(
    out: Path, run: RunConfig, weights: Mapping[str, Tensor], vocab: Vocab, about: dict[str, Any]
) -> RunFolder:
    """Write a run with these weights as its `best`; `about` may say after how many steps."""
    progress = Counters(step=about.pop("step", 0))
    cursor = asdict(progress) | {"cursor": list(progress.cursor), "loss_scale": [1.0, 0]}
    with lock_folder(out):
        saved = Checkpoint({"model": dict(weights)}, cursor)
        checkpoint.save(RunFolder(out).checkpoints, "best", saved, run.identity())
        return create(out, run, vocab, about)
