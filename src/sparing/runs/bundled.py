"""The model that comes with the package, for those who have no run at hand yet."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from sparing.data.local import SPLITS
from sparing.errors import UserError
from sparing.runs.config import complete_identity
from sparing.runs.folder import RunFolder, is_run, open_run
from sparing.train import checkpoint
from sparing.train.checkpoint import Checkpoint

HOME = Path(__file__).parents[1] / "shipped"
"""A run folder without its journal: settings, vocabulary, provenance, figures, best weights."""
OPENING = b"""\
  <page>
    <title>Attention</title>
    <revision>
      <text xml:space="preserve">'''Attention''' is the ability to [[choose]] what to look at. """
"""What that model goes on from unless told otherwise. It has read the middle of texts, hardly ever
their beginning: without anything before it, it writes rubbish."""
KEPT = ("vocab", "provenance", "results", "config")
"""Of a run's files; the last makes the folder a run."""
UNROUNDED = "before they were rounded to bfloat16"
"""Of which weights the reports are that a run had before it was shipped."""


def run_or_shipped(path: Path | None, home: Path = HOME) -> RunFolder:
    """The run in `path`; without one, the package's own."""
    if path is not None:
        return open_run(path)
    if not is_run(home):
        raise UserError("name a RUN: this installation brings no model of its own")
    return RunFolder(home)


def ship(folder: RunFolder, home: Path = HOME) -> None:
    """Make a run's best weights, matrices in bfloat16, the package's model."""
    name, identity = folder.checkpoint(), folder.config().identity()
    stored = checkpoint.load(folder.checkpoints, name, identity, complete_identity)
    weights = {
        # Spans and gains weigh nothing, and a rounded span is off by up to 3 %.
        key: tensor.bfloat16() if tensor.dtype == torch.float32 and tensor.ndim > 1 else tensor
        for key, tensor in stored.tensors["model"].items()
    }
    shipped = RunFolder(home)
    checkpoint.save(
        shipped.checkpoints, "best", Checkpoint({"model": weights}, stored.cursor), identity
    )
    for kept in KEPT:
        if (folder.path / f"{kept}.json").exists():
            content = folder.read(kept)
            shipped.write(kept, _unrounded(content) if kept == "results" else content)


def _unrounded(results: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a run, each with a word on whose they are."""
    return {
        name: {**figures, "weights": UNROUNDED} if name.split(",")[0] in SPLITS else figures
        for name, figures in results.items()
    }
