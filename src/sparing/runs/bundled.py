"""The small trained model that comes with the package."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from sparing.data.corpora import SPLITS
from sparing.errors import UserError
from sparing.runs.card import COSTS, HOME
from sparing.runs.config import complete_identity
from sparing.runs.costs import costs
from sparing.runs.folder import RunFolder, is_run, open_run
from sparing.training import checkpoint
from sparing.training.checkpoint import Checkpoint

NAME = "enwik8_small"
"""What it is called where other models have the name of their folder."""
OPENING = b"""\
  <page>
    <title>Attention</title>
    <revision>
      <text xml:space="preserve">'''Attention''' is the ability to [[choose]] what to look at. """
"""The default prompt of that model, in the markup of its training text."""
KEPT = ("vocab", "provenance", "results", "config")
"""JSON files that are copied; `config` comes last, because it makes the folder a run."""
UNROUNDED = "before they were rounded to bfloat16"
"""Which weights the results belong to that a run had before it was bundled."""


def run_or_bundled(path: Path | None, home: Path = HOME) -> RunFolder:
    """The run in `path`; the bundled one if `path` is None."""
    if path is not None:
        return open_run(path)
    if not is_run(home):
        raise UserError("name a RUN: this installation has no bundled model")
    return RunFolder(home)


def bundle(folder: RunFolder, home: Path = HOME) -> None:
    """Make the best weights of a run, with matrices in bfloat16, the bundled model."""
    name, identity = folder.checkpoint(), folder.config().identity()
    stored = checkpoint.load(folder.checkpoints, name, identity, complete_identity)
    before = stored.tensors["model"]
    weights = {
        # Spans and gains take hardly any bytes, and rounding would change a span by up to 3 %.
        key: tensor.bfloat16() if tensor.dtype == torch.float32 and tensor.ndim > 1 else tensor
        for key, tensor in before.items()
    }
    rounded = any(
        not torch.equal(weights[key].to(before[key].dtype), before[key]) for key in before
    )
    bundled = RunFolder(home)
    checkpoint.save(
        bundled.checkpoints, "best", Checkpoint({"model": weights}, stored.cursor), identity
    )
    bundled.write(COSTS, costs(folder.config()))
    for kept in KEPT:
        if (folder.path / f"{kept}.json").exists():
            content = folder.read(kept)
            marked = rounded and kept == "results"
            bundled.write(kept, _mark_unrounded(content) if marked else content)


def _mark_unrounded(results: Mapping[str, Any]) -> dict[str, Any]:
    """The results of a run, each with a note that its weights were not rounded."""
    return {
        name: {**entry, "weights": UNROUNDED} if name.split(",")[0] in SPLITS else entry
        for name, entry in results.items()
    }
