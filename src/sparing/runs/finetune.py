"""Fine-tuning: a run that starts from the weights and the vocabulary of another one."""

import fnmatch
import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
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
from sparing.runs.records import read_provenance, read_results
from sparing.training import checkpoint, swap
from sparing.training.capture import load_model_tensors, model_tensors
from sparing.training.checkpoint import Checkpoint
from sparing.training.distributed.dtensor import full_tensor

BUNDLED = "bundled"
"""The name of the package's model; a folder of that name is `./bundled`."""
MAY_BE_DROPPED = ("mtp.*",)
"""Weights that only training uses: they may be missing on either side."""
MAY_BE_MISSING = (*MAY_BE_DROPPED, "*.init_states.*")
"""Weights that need not be in the checkpoint: as drawn they do not change its predictions."""
MATTERING = (
    "pattern", "dim", "depth", "heads", "rows", "lengths", "tied", "cutoffs", "tokens", "states",
)  # fmt: skip
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
    history: Mapping[str, Any]
    """What the run recorded of its own training."""

    def record(self) -> dict[str, Any]:
        """Where the weights come from, for provenance.json."""
        return {
            "run": self.name,
            "checkpoint": self.checkpoint,
            "step": self.step,
            "sha256": self.sha256,
            "recipe": self.config.recipe,
            "corpus": self.config.data.corpus,
            **self.history,
        }


def open_init(name: str, checkpoint_name: str | None = None) -> Init:
    """Read the weights of a run, or of the package's model if the name is `bundled`."""
    if not name.strip():
        raise UserError(f"`init` is empty; name a run, or {BUNDLED!r} for the package's model")
    path = None if name == BUNDLED else expand_home(name)
    folder = run_or_bundled(path)
    folder.require_checkpoints()
    config, chosen = folder.config(), folder.checkpoint(checkpoint_name)

    def read() -> tuple[Checkpoint, str]:
        identity = config.identity()
        found = checkpoint.load(folder.checkpoints, chosen, identity, complete_identity)
        return found, _file_sha256(folder, chosen)

    found, sha256 = checkpoint.read_unmixed(folder.checkpoints, chosen, read)
    return Init(
        name=BUNDLED if path is None else str(path.resolve()),
        checkpoint=chosen,
        step=int(found.cursor["step"]),
        sha256=sha256,
        config=config,
        vocab=folder.vocab(),
        weights=found.tensors["model"],
        history=_history(folder),
    )


def _history(folder: RunFolder) -> dict[str, Any]:
    """Provenance and results of a run, as far as they are recorded and can be read."""
    records: dict[str, Any] = {}
    for name, read in (("provenance", read_provenance), ("results", read_results)):
        with suppress(UserError):
            records[name] = read(folder.path)
    return {name: record for name, record in records.items() if record}


def _file_sha256(folder: RunFolder, name: str) -> str:
    path = swap.locate(folder.checkpoints, name) or folder.checkpoints / name
    with open_regular(path / "model.safetensors") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def finetune_recipe(init: Init) -> RunConfig:
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
    wanted, given = model_tensors(build_model(run, "meta")), init.weights
    optional = {name for name in wanted.keys() - given.keys() if _matches(name, MAY_BE_MISSING)}
    optional |= {name for name in wanted.keys() | given.keys() if _matches(name, MAY_BE_DROPPED)}
    for name in sorted((wanted.keys() | given.keys()) - optional):
        there, here = (_shape(each.get(name)) for each in (given, wanted))
        if there != here:
            changed = [each for each in differences(init.config, run) if _matters(each)]
            why = changed[0] if changed else f"{name} is {there} there and {here} here"
            raise UserError(f"the weights of run {init.name} do not fit this model ({why})")


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _shape(tensor: Tensor | None) -> str:
    return "missing" if tensor is None else str(tuple(tensor.shape))


def _matters(difference: str) -> bool:
    path = difference.partition(":")[0]
    last = path.rpartition(".")[2]
    return path.startswith("model.") and any(word in last.split("_") for word in MATTERING)


def load_init(model: LanguageModel, init: Init) -> list[str]:
    """Load the weights of `init`; return the names of those it lacks, which stay as drawn."""
    own = model_tensors(model)
    lacking = [name for name in own if _matches(name, MAY_BE_MISSING) and not _has(init, own, name)]
    # Every process calls this, as a shard alone could not be loaded again.
    kept = {name: full_tensor(own[name]).detach().clone() for name in lacking}
    given = {name: each for name, each in init.weights.items() if name in own}
    load_model_tensors(model, {**given, **kept})
    return lacking


def _has(init: Init, own: Mapping[str, Tensor], name: str) -> bool:
    return name in init.weights and init.weights[name].shape == own[name].shape
