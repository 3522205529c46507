"""The callbacks of a run: rank 0 writes its folder, checkpoints in the background; all ranks
validate."""

from functools import partial
from typing import Any

from sparing.data.tokens import Tokens, truncate_split
from sparing.evaluation.loss import evaluate_streams
from sparing.models.api import LanguageModel
from sparing.runs.config import RunConfig, complete_identity
from sparing.runs.folder import RunFolder
from sparing.training import checkpoint, swap
from sparing.training.background import BackgroundWriter
from sparing.training.capture import broadcast_checkpoint
from sparing.training.checkpoint import Checkpoint
from sparing.training.journal import Journal, NullJournal
from sparing.training.progress import ProgressBar
from sparing.training.state import Callbacks, Training


def build_callbacks(
    run: RunConfig, folder: RunFolder, tokens: Tokens, training: Training, *, progress: bool
) -> Callbacks:
    """Callbacks that write on rank 0 only, and broadcast what rank 0 reads."""
    identity, world = run.identity(), training.world
    leading = world.rank == 0

    def write(name: str, saved: Checkpoint) -> None:
        checkpoint.save_begun(folder.checkpoints, name, saved, identity)

    writer = BackgroundWriter(write, partial(swap.begin, folder.checkpoints))

    def load(name: str) -> Checkpoint | None:
        writer.wait()
        exists = leading and checkpoint.exists(folder.checkpoints, name)
        if not exists:
            return broadcast_checkpoint(world, None)
        loaded = checkpoint.load(folder.checkpoints, name, identity, complete_identity)
        return broadcast_checkpoint(world, loaded)

    def save(name: str, saved: Checkpoint) -> None:
        if leading:
            writer.save(name, saved)

    def update_checkpoint(name: str, saved: Checkpoint) -> None:
        if leading:
            writer.wait()
            checkpoint.update(folder.checkpoints, name, saved, identity)

    tensorboard, step = folder.path / "tensorboard", training.counters.step
    return Callbacks(
        journal=Journal(folder.metrics, tensorboard, step) if leading else NullJournal(),
        bar=ProgressBar(shown=progress and leading),
        save=save,
        update_checkpoint=update_checkpoint,
        load=load,
        writer=writer,
        validate=partial(_validate, run, tokens, training),
    )


def _validate(
    run: RunConfig, tokens: Tokens, training: Training, model: LanguageModel
) -> dict[str, Any]:
    split = whole = tokens.split("valid")
    if run.train.evaluate_bytes is not None:
        split = truncate_split(whole, run.train.evaluate_bytes, tokens.vocab)
    e = run.evaluate
    result = evaluate_streams(
        model,
        split,
        training.hardware,
        batch=e.batch,
        segment=e.segment,
        protocol=run.data.protocol,
        world=training.world,
    )
    return {**result.to_json(), "whole": split.size_bytes == whole.size_bytes}
