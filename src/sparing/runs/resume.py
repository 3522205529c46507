"""Going on with an earlier run, from the checkpoint it left."""

from typing import Any

from sparing.config import differences
from sparing.data.tokens import Tokens
from sparing.errors import UserError
from sparing.runs.build import build_model, build_stream
from sparing.runs.config import RunConfig, from_json, to_json
from sparing.runs.folder import RunFolder
from sparing.runs.provenance import provenance
from sparing.train import checkpoint, journal
from sparing.train.capture import broadcast_checkpoint, capture, restore, resumable, second_pass
from sparing.train.loop import spent
from sparing.train.progress import Clock
from sparing.train.state import Training

BUDGET = ("train.steps:", "train.epochs:", "train.minutes:")


def resume(
    run: RunConfig, folder: RunFolder, training: Training, tokens: Tokens, *, name: str
) -> None:
    """Bring `training` to checkpoint `name` of the folder's run, and write down that it goes on.

    A run that left no checkpoint begins anew.
    """
    world = training.world
    leading = world.rank == 0
    record = provenance(training.hardware, run.train.seed)
    before = from_json(world.broadcast_object(to_json(folder.config()) if leading else None))
    _refuse_other_lanes(before, run)
    there = leading and bool(checkpoint.present(folder.checkpoints))
    if leading and not there:
        _refuse_without_weights(folder)
    if world.broadcast_object(name != "last" or there):
        _go_on(run, before, folder, training, name)
        cutting = training.stream.config
        training.stream = build_stream(tokens, cutting, world, training.progress.cursor)
    if leading:
        journal.rewind(folder.metrics, training.progress.journal_bytes)
        _write_down(run, before, folder, record)


def _refuse_without_weights(folder: RunFolder) -> None:
    """Figures are of weights: to begin anew would leave them beside others."""
    if folder.results():
        raise UserError(f"run {folder.path} has figures but no checkpoint; start a new one")


def _refuse_other_lanes(before: RunConfig, run: RunConfig) -> None:
    """What the carried state and the stream's position belong to cannot change under way.

    Nor can the pieces of which a super-net's held lanes are the last.
    """
    apart = build_model(run, "meta").fixed_micro_batches
    settings = ["train.batch:", "data.", *(["train.micro_batches:"] if apart else [])]
    fixed = [each for each in differences(before, run) if each.startswith(tuple(settings))]
    if fixed:
        raise UserError(f"a resumed run cannot change {fixed[0]}; start a new one")


def _go_on(
    run: RunConfig, before: RunConfig, folder: RunFolder, training: Training, name: str
) -> None:
    """Bring `training` to where a checkpoint left off, or begin a second pass from its weights."""
    world = training.world
    leading = world.rank == 0
    saved = broadcast_checkpoint(
        world, checkpoint.load(folder.checkpoints, name, run.identity()) if leading else None
    )
    assert saved is not None
    changed = before.optim != run.optim or before.schedule != run.schedule
    if not changed and resumable(saved):
        restore(training, saved)
    else:
        second_pass(training, saved)
        changed = True
    if changed or any(each.startswith(BUDGET) for each in differences(before, run)):
        _refuse_spent(training, run)
    if changed or name != "last":
        _begin_from(folder, training, run, name)


def _refuse_spent(training: Training, run: RunConfig) -> None:
    p = training.progress
    if spent(training, run.train, Clock(p.elapsed_s)) >= 1:
        raise UserError(
            f"the run's budget is spent, {p.step:,} steps in {p.elapsed_s:,.0f} s; "
            "name a larger total of steps, epochs or minutes"
        )


def _begin_from(folder: RunFolder, training: Training, run: RunConfig, name: str) -> None:
    """Make where `training` stands the run's `last`, before it is written down that it was resumed.

    A kill in between must neither turn a second pass into a plain continuation nor bring back what
    `name` was chosen over.
    """
    captured = capture(training)
    if training.world.rank:
        return
    if name == "previous":
        # Else `last` would take its name, and the same command mean another checkpoint.
        checkpoint.drop(folder.checkpoints, "last")
    checkpoint.save(folder.checkpoints, "last", captured, run.identity())


def _write_down(
    run: RunConfig, before: RunConfig, folder: RunFolder, record: dict[str, Any]
) -> None:
    """The settings the run goes on with, and where it goes on."""
    if before != run:
        record["changed"] = differences(before, run)
        folder.write("config", to_json(run))
    first = folder.read("provenance")
    folder.write("provenance", {**first, "resumed": [*first.get("resumed", []), record]})
