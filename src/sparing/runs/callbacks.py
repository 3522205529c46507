"""A run's callbacks: rank 0 writes, and all judge."""

from functools import partial
from typing import Any

from sparing.data.tokens import Tokens, first_bytes
from sparing.evaluate.loss import carried
from sparing.models.api import LanguageModel
from sparing.runs.config import RunConfig, complete_identity
from sparing.runs.folder import RunFolder
from sparing.train import checkpoint
from sparing.train.capture import broadcast_checkpoint
from sparing.train.checkpoint import Checkpoint
from sparing.train.journal import Journal, NullJournal
from sparing.train.progress import Bar
from sparing.train.state import Callbacks, Training


def build_callbacks(
    run: RunConfig, folder: RunFolder, tokens: Tokens, training: Training, *, progress: bool
) -> Callbacks:
    """Rank 0's writes; the others' only reads, and what rank 0 hands out."""
    identity, world = run.identity(), training.world
    leading = world.rank == 0

    def load(name: str) -> Checkpoint | None:
        there = leading and checkpoint.exists(folder.checkpoints, name)
        found = (
            checkpoint.load(folder.checkpoints, name, identity, complete_identity)
            if there
            else None
        )
        return broadcast_checkpoint(world, found)

    def save(name: str, saved: Checkpoint) -> None:
        if leading:
            checkpoint.save(folder.checkpoints, name, saved, identity)

    def amend(name: str, saved: Checkpoint) -> None:
        if leading:
            checkpoint.amend(folder.checkpoints, name, saved, identity)

    board, step = folder.path / "tensorboard", training.progress.step
    return Callbacks(
        journal=Journal(folder.metrics, board, step) if leading else NullJournal(),
        bar=Bar(shown=progress and leading),
        save=save,
        amend=amend,
        load=load,
        judge=partial(_judge, run, tokens, training),
    )


def _judge(
    run: RunConfig, tokens: Tokens, training: Training, model: LanguageModel
) -> dict[str, Any]:
    split = whole = tokens.split("valid")
    if run.train.evaluate_bytes is not None:
        split = first_bytes(whole, run.train.evaluate_bytes, tokens.vocab)
    e = run.evaluate
    protocol = "bytes" if run.data.newlines else "no-newlines"
    result = carried(
        model,
        split,
        training.hardware,
        batch=e.batch,
        segment=e.segment,
        protocol=protocol,
        world=training.world,
    )
    return {**result.to_json(), "whole": split.size_bytes == whole.size_bytes}
