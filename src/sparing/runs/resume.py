"""Resuming a run from one of its checkpoints."""

from typing import Any

from sparing.config import differences
from sparing.data.tokens import Tokens
from sparing.errors import UserError
from sparing.runs.build import build_model, build_stream
from sparing.runs.config import RunConfig, complete_identity, from_json, to_json
from sparing.runs.folder import RunFolder
from sparing.runs.provenance import provenance
from sparing.train import checkpoint, journal
from sparing.train.capture import (
    broadcast_checkpoint,
    capture,
    is_resumable,
    restore,
    start_second_pass,
)
from sparing.train.loop import budget_used
from sparing.train.state import Training
from sparing.train.stopping import Clock
from sparing.units import pluralize

BUDGET = ("train.steps:", "train.epochs:", "train.minutes:")


def resume(
    run: RunConfig, folder: RunFolder, training: Training, tokens: Tokens, *, name: str
) -> None:
    """Restore `training` from checkpoint `name` of a run, and record that the run was resumed.

    A run without a checkpoint starts from the beginning.
    """
    world = training.world
    leading = world.rank == 0
    record = provenance(training.hardware, run.train.seed)
    before = from_json(world.broadcast_object(to_json(folder.config()) if leading else None))
    _check_unchanged_settings(before, run)
    exists = leading and bool(checkpoint.list_names(folder.checkpoints))
    if leading and not exists:
        _check_no_results(folder)
    if world.broadcast_object(name != "last" or exists):
        _restore(run, before, folder, training, name)
        config = training.stream.config
        training.stream = build_stream(tokens, config, world, training.counters.cursor)
    if leading:
        journal.rewind(folder.metrics, training.counters.journal_bytes)
        _record_resume(run, before, folder, record)


def _check_no_results(folder: RunFolder) -> None:
    """Results belong to weights, so a run that has lost its weights must not start again."""
    if folder.results():
        raise UserError(f"run {folder.path} has results but no checkpoint; start a new run")


def _check_unchanged_settings(before: RunConfig, run: RunConfig) -> None:
    """Settings that the carried state and the stream's position depend on must not change.

    Nor must the number of micro-batches if the model's held-out lanes depend on it.
    """
    apart = build_model(run, "meta").fixed_micro_batches
    settings = ["train.batch:", "data.", *(["train.micro_batches:"] if apart else [])]
    fixed = [each for each in differences(before, run) if each.startswith(tuple(settings))]
    if fixed:
        raise UserError(f"a resumed run cannot change {fixed[0]}; start a new run")


def _restore(
    run: RunConfig, before: RunConfig, folder: RunFolder, training: Training, name: str
) -> None:
    """Restore `training` from a checkpoint, or start a second pass with its weights."""
    world = training.world
    leading = world.rank == 0
    found = (
        checkpoint.load(folder.checkpoints, name, run.identity(), complete_identity)
        if leading
        else None
    )
    saved = broadcast_checkpoint(world, found)
    assert saved is not None
    changed = before.optim != run.optim or before.schedule != run.schedule
    if not changed and is_resumable(saved):
        restore(training, saved)
    else:
        start_second_pass(training, saved)
        changed = True
    if changed or any(each.startswith(BUDGET) for each in differences(before, run)):
        _check_budget(training, run)
    if changed or name != "last":
        _save_as_last(folder, training, run, name)


def _check_budget(training: Training, run: RunConfig) -> None:
    counters = training.counters
    if budget_used(training, run.train, Clock(counters.elapsed_s)) >= 1:
        raise UserError(
            f"the run's budget is used up: {pluralize(counters.step, 'step')} in "
            f"{counters.elapsed_s:,.0f} s; set a larger total of steps, epochs or minutes"
        )


def _save_as_last(folder: RunFolder, training: Training, run: RunConfig, name: str) -> None:
    """Save `training` as the run's `last` before the resume is recorded.

    A kill in between must neither turn a second pass into a plain resume, nor bring back the
    checkpoint that `name` was preferred to.
    """
    captured = capture(training)
    if training.world.rank:
        return
    if name == "previous":
        # Otherwise `last` would become `previous`, and the same command would load another one.
        checkpoint.drop(folder.checkpoints, "last")
    checkpoint.save(folder.checkpoints, "last", captured, run.identity())


def _record_resume(
    run: RunConfig, before: RunConfig, folder: RunFolder, record: dict[str, Any]
) -> None:
    """Write the settings and the provenance of the resumed run."""
    if before != run:
        record["changed"] = differences(before, run)
        folder.write("config", to_json(run))
    first = folder.read("provenance")
    folder.write("provenance", {**first, "resumed": [*first.get("resumed", []), record]})
