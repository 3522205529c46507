"""Searches in a folder without having been run."""

from dataclasses import asdict, replace
from pathlib import Path

import torch

from sparing.data.vocab import ByteVocab
from sparing.models.supernet.config import SupernetConfig
from sparing.models.supernet.model import Supernet
from sparing.runs.config import RunConfig, with_settings
from sparing.runs.folder import RunFolder, create
from sparing.runs.recipes import recipe
from sparing.search.derive import supernet_run
from sparing.training import checkpoint
from sparing.training.capture import model_tensors
from sparing.training.checkpoint import Checkpoint
from sparing.training.state import Counters

SMALL = [
    "model.dim=8",
    "model.relative.head_dim=4",
    "model.relative.memory=8",
    "model.windowed.head_dim=4",
    "model.single_head.memory=8",
    "model.feedforward.dim=8",
    "model.boom.dim=8",
    "model.search.candidates=xfi",
]


def small_search(*settings: str) -> RunConfig[SupernetConfig]:
    """The toy search at its smallest, with PAR's three candidates."""
    run = with_settings(supernet_run(recipe("toy_par_search")), [*SMALL, *settings])
    train = replace(run.train, batch=4, segment=8, steps=8, log_every=2, compiled=False)
    return replace(
        run,
        train=train,
        evaluate=replace(run.evaluate, batch=4, segment=16),
    )


def searched_run(path: Path, found: str, *settings: str, best: str | None = None) -> RunFolder:
    """A search whose preferences ended with the pattern `found`."""
    run = small_search(*settings)
    folder = create(path, run, ByteVocab(), {})
    for name, letters in (("last", found), ("best", best)):
        if letters is not None:
            _save(folder, run, name, letters)
    return folder


def _save(folder: RunFolder, run: RunConfig[SupernetConfig], name: str, pattern: str) -> None:
    torch.manual_seed(0)
    model = Supernet(run.model)
    assert model.logits is not None
    with torch.no_grad():
        for slot, letter in enumerate(pattern):
            model.logits[slot, run.model.search.candidates.index(letter)] = 1.0
    cursor = asdict(Counters()) | {"cursor": [0, 0, 0], "loss_scale": None}
    saved = Checkpoint({"model": model_tensors(model)}, cursor)
    checkpoint.save(folder.checkpoints, name, saved, run.identity())
