"""Fine-tuning: a run that starts from the weights and the vocabulary of another one."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from sparing.config import differences
from sparing.data.vocab import Vocab
from sparing.errors import UserError
from sparing.files import expand_home
from sparing.inputs import open_regular
from sparing.models.api import LanguageModel
from sparing.runs.build import build_model
from sparing.runs.bundled import run_or_bundled
from sparing.runs.config import RunConfig, complete_identity, for_vocab
from sparing.runs.folder import RunFolder
from sparing.runs.recipes import recipe
from sparing.training import checkpoint, swap
from sparing.training.capture import load_model_tensors, model_tensors
from sparing.training.distributed.dtensor import full_tensor

BUNDLED = "bundled"
"""The name of the package's model; a folder of that name is `./bundled`."""
TRAINING_ONLY = "mtp."
"""Weights that only training uses: a checkpoint may lack them, and a model may do without."""
MATTERING = ("pattern", "dim", "depth", "heads", "rows", "lengths", "tied", "cutoffs", "tokens")
"""Settings that decide shapes, in any group; others, such as dropout, may differ."""


@dataclass(frozen=True, slots=True)
class Init:
    """The weights, settings and vocabulary that a run starts from."""

    name: str
    """The run, as it was named."""
    checkpoint: str
    step: int
    sha256: str
    """Of the file that holds the weights."""
    config: RunConfig
    vocab: Vocab
    weights: Mapping[str, Tensor]

    def record(self) -> dict[str, Any]:
        """Where the weights come from, for provenance.json."""
        names = ("name", "checkpoint", "step", "sha256")
        return {"run" if name == "name" else name: getattr(self, name) for name in names}


def open_init(name: str, checkpoint_name: str | None = None) -> Init:
    """Read the weights of a run, or of the package's model if the name is `bundled`."""
    if not name.strip():
        raise UserError(f"--init is empty; name a run, or {BUNDLED!r} for the package's model")
    path = None if name == BUNDLED else expand_home(name)
    folder = run_or_bundled(path)
    folder.require_checkpoints()
    config, chosen = folder.config(), folder.checkpoint(checkpoint_name)
    before = _file_sha256(folder, chosen)
    found = checkpoint.load(folder.checkpoints, chosen, config.identity(), complete_identity)
    if _file_sha256(folder, chosen) != before:
        raise UserError(f"run {name} has replaced its checkpoint {chosen} just now; try again")
    return Init(
        name=BUNDLED if path is None else str(path.resolve()),
        checkpoint=chosen,
        step=int(found.cursor["step"]),
        sha256=before,
        config=config,
        vocab=folder.vocab(),
        weights=found.tensors["model"],
    )


def _file_sha256(folder: RunFolder, name: str) -> str:
    path: Path | None = swap.locate(folder.checkpoints, name)
    # A missing checkpoint is reported by whoever reads it.
    if path is None or not (path / "model.safetensors").exists():
        return ""
    with open_regular(path / "model.safetensors") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tuning_recipe(init: Init) -> RunConfig:
    """The model and data settings of a run, with the training settings of `finetune_small`."""
    return replace(recipe("finetune_small"), recipe="finetune", **_of_model(init.config))


def _of_model(config: RunConfig) -> dict[str, Any]:
    return {"family": config.family, "model": config.model, "data": config.data}


def adapt_to_init(run: RunConfig, init: Init) -> RunConfig:
    """The run with the vocabulary of `init`; a UserError if its weights do not fit the model."""
    if run.family != init.config.family:
        raise UserError(
            f"run {init.name} is a {init.config.family}, and recipe {run.recipe} a {run.family}"
        )
    here, there = run.data, init.config.data
    for name in ("vocab", "vocab_size"):
        given, wanted = getattr(here, name), getattr(there, name)
        if given not in (None, wanted):
            raise UserError(
                f"data.{name} is {given}, but run {init.name} was trained with {wanted}; "
                f"set data.{name}={'none' if wanted is None else wanted}"
            )
    # How the vocabulary was made is the other run's; which text it encodes, and how, is this run's.
    data = replace(here, vocab_size=there.vocab_size, symbol_order=there.symbol_order)
    run = for_vocab(replace(run, data=data), init.vocab.size)
    _check_fit(init, run)
    return run


def _check_fit(init: Init, run: RunConfig) -> None:
    wanted = _always_there(model_tensors(build_model(run, "meta")))
    given = _always_there(init.weights)
    for name in sorted(wanted.keys() | given.keys()):
        there, here = (_shape(each.get(name)) for each in (given, wanted))
        if there != here:
            changed = [each for each in differences(init.config, run) if _matters(each)]
            why = changed[0] if changed else f"{name} is {there} there and {here} here"
            raise UserError(f"the weights of run {init.name} do not fit this model ({why})")


def _always_there(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: each for name, each in tensors.items() if not name.startswith(TRAINING_ONLY)}


def _shape(tensor: Tensor | None) -> str:
    return "missing" if tensor is None else str(tuple(tensor.shape))


def _matters(difference: str) -> bool:
    path = difference.partition(":")[0]
    last = path.rpartition(".")[2]
    return path.startswith("model.") and any(word in last.split("_") for word in MATTERING)


def load_init(model: LanguageModel, init: Init) -> list[str]:
    """Load the weights of `init`; return the names of those it lacks, which stay as drawn."""
    own = model_tensors(model)
    lacking = [name for name in own if name.startswith(TRAINING_ONLY) and not _has(init, own, name)]
    # Every process calls this, as a shard alone could not be loaded again.
    kept = {name: full_tensor(own[name]).detach().clone() for name in lacking}
    given = {name: each for name, each in init.weights.items() if name in own}
    load_model_tensors(model, {**given, **kept})
    return lacking


def _has(init: Init, own: Mapping[str, Tensor], name: str) -> bool:
    return name in init.weights and init.weights[name].shape == own[name].shape
