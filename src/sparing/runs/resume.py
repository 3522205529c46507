"""Resuming a run from one of its checkpoints."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sparing.config import differences
from sparing.data.tokens import Tokens
from sparing.errors import UserError
from sparing.files import read_object, remove_leftovers
from sparing.runs.build import build_model, build_stream
from sparing.runs.config import RunConfig, complete_identity, from_json, to_json
from sparing.runs.folder import RunFolder
from sparing.runs.provenance import provenance
from sparing.runs.records import Provenance
from sparing.training import checkpoint, journal, swap
from sparing.training.capture import (
    broadcast_checkpoint,
    capture,
    capture_weights,
    is_resumable,
    restore,
    restore_bare,
    start_second_pass,
)
from sparing.training.checkpoint import Checkpoint
from sparing.training.loop import budget_used
from sparing.training.state import Counters, Training
from sparing.training.stopping import Clock
from sparing.units import pluralize

BUDGET = ("train.steps:", "train.epochs:", "train.minutes:")


@dataclass(frozen=True, kw_only=True, slots=True)
class ResumeOptions:
    """What a run continues from."""

    checkpoint: str = "last"
    cut_journal: bool = False
    """Whether a damaged journal is continued without its unreadable lines."""


def resume(
    run: RunConfig, folder: RunFolder, training: Training, tokens: Tokens, options: ResumeOptions
) -> None:
    """Restore `training` from a checkpoint of a run, and record that the run was resumed.

    Everything is read and checked before anything is written. A run that was killed before its
    first `last` starts again from the beginning: then nothing is restored.
    """
    world, counters, name = training.world, training.counters, options.checkpoint
    leading = world.rank == 0
    if leading and not (folder.path / "provenance.json").exists():
        raise UserError(f"run {folder.path} has lost its provenance.json; restore that file")
    starts, stored = (folder.starts(), folder.stored_config()) if leading else ([], run)
    before = from_json(world.broadcast_object(to_json(folder.config()) if leading else None))
    _check_unchanged_settings(before, run)
    again = world.broadcast_object(leading and _starts_again(folder, before, run, name))
    moved = False
    if not again:
        moved = _restore(run, before, folder, training, name)
        counters, config = training.counters, training.stream.config
        training.stream = build_stream(tokens, config, world, counters.cursor)
        training.saved_step = counters.step
    size = counters.journal_bytes
    lost = _lost_bytes(folder.metrics, size, cut=options.cut_journal) if leading else 0
    counters.journal_bytes -= lost
    training.saved_whole |= moved
    take = capture if training.saved_whole else capture_weights
    captured = take(training) if moved or world.broadcast_object(lost) else None
    if leading:
        unwanted = (
            _trains_otherwise(before, run) if again else _is_before_best(folder, name, counters)
        )
        if lost or again:
            # First: the shorter length in `last` is that of the journal without its damage, and
            # what the next lines remove may be the reason to start again.
            journal.rewind(folder.metrics, size)
        if unwanted:
            swap.remove(folder.checkpoints, "best")
        swap.go_back_to_best(folder.checkpoints, name)
        _save_as_last(folder, captured, run, rotate=moved and _is_worth_keeping(folder, name))
        journal.rewind(folder.metrics, size)
        _note_best(folder)
        record = provenance(training.hardware, run.train.seed) | {"step": counters.step}
        cut = {"journal_bytes_cut": lost} if lost else {}
        _record_resume(run, folder, starts, record | cut | _changed(stored, run))


def _starts_again(folder: RunFolder, before: RunConfig, run: RunConfig, name: str) -> bool:
    """Whether the run was killed before its first `last`, rather than having lost it."""
    results, names = folder.results(), checkpoint.list_names(folder.checkpoints)
    if name != "last" or {"last", "previous"} & set(names) or folder.is_finetuned():
        return False
    if results and (not names or before != run):
        # Results belong to weights, which a new start would replace by others.
        what = "results of other settings" if names else "results but no checkpoint"
        raise UserError(f"run {folder.path} has {what}; start a new run")
    reached = journal.last_step(folder.metrics)
    return "training" not in results and reached <= before.train.checkpoint_every


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
) -> bool:
    """Restore `training` from a checkpoint, or start a second pass with its weights.

    Returns whether it is now elsewhere than in `last`.
    """
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
    # A checkpoint of an earlier pass belongs to the optimizer and the schedule of that pass.
    changed |= world.broadcast_object(leading and _is_of_earlier_pass(folder, saved, name))
    training.saved_whole = is_resumable(saved)
    if training.saved_whole and not changed:
        restore(training, saved)
    else:
        restore_bare(training, saved)
        # The end of a run without its state: what may be left to do is to validate the weights.
        if changed or name != "last" or not _is_used_up(training, run):
            start_second_pass(training, saved)
            changed = True
    if changed or before != run:
        # Without a step to come, the settings would claim what was not trained with them.
        _check_budget(training, run)
    return changed or name != "last"


def _is_used_up(training: Training, run: RunConfig) -> bool:
    return budget_used(training, run.train, Clock(training.counters.elapsed_s)) >= 1


def _check_budget(training: Training, run: RunConfig) -> None:
    counters = training.counters
    if _is_used_up(training, run):
        raise UserError(
            f"the run's budget is used up: {pluralize(counters.step, 'step')} in "
            f"{counters.elapsed_s:,.0f} s; set a larger total of steps, epochs or minutes"
        )


def _lost_bytes(path: Path, size_bytes: int, *, cut: bool) -> int:
    """Bytes before a checkpoint that the journal has lost; refused unless it is to be `cut`."""
    lost = size_bytes - len(journal.sound_part(path, size_bytes))
    if lost and not cut:
        raise UserError(
            f"{path} is damaged: {lost:,} of its first {size_bytes:,} bytes are missing or "
            "unreadable; restore it, or go on without those entries with `--cut-journal` (in "
            "Python, `cut_journal=True`)"
        )
    return lost


def _is_of_earlier_pass(folder: RunFolder, saved: Checkpoint, name: str) -> bool:
    last = _cursor_of_last(folder) if name == "previous" else {}
    return bool(last) and last.get("pass_step") != saved.cursor.get("pass_step")


def _cursor_of_last(folder: RunFolder) -> dict[str, Any]:
    """The cursor of `last`; empty if that is missing or damaged."""
    path = swap.locate(folder.checkpoints, "last")
    if path is None or not checkpoint.is_intact(folder.checkpoints, "last"):
        return {}
    return read_object(path / checkpoint.CURSOR)


def _is_worth_keeping(folder: RunFolder, name: str) -> bool:
    """Whether the `last` that gives way to checkpoint `name` should become `previous`.

    Not if it is damaged, or `previous` was preferred to it, or it is the start of a pass that a
    kill kept from beginning: then the `previous` there is worth more.
    """
    last = _cursor_of_last(folder)
    return name != "previous" and bool(last) and last.get("pass_share", 0) is not None


def _save_as_last(
    folder: RunFolder, captured: Checkpoint | None, run: RunConfig, *, rotate: bool
) -> None:
    """Save a training as the run's `last`, with its settings, before the resume is recorded.

    A kill in between must neither turn a second pass into a plain resume, nor bring back the
    checkpoint that another was preferred to.
    """
    remove_leftovers(folder.path)
    swap.settle(folder.checkpoints)
    if captured is not None:
        saved = replace(captured, settings=to_json(run))
        checkpoint.save(folder.checkpoints, "last", saved, run.identity(), rotate=rotate)


def _is_before_best(folder: RunFolder, name: str, counters: Counters) -> bool:
    """Whether the first `best` was found after checkpoint `name` was written."""
    path = swap.locate(folder.checkpoints, name)
    if path is None or (path / "best").is_dir():
        return False
    return checkpoint.is_intact(folder.checkpoints, "best") and folder.step("best") > counters.step


def _trains_otherwise(before: RunConfig, run: RunConfig) -> bool:
    """Whether more than the budget is different, so that weights of the one are not the other's."""
    return any(not each.startswith(BUDGET) for each in differences(before, run))


def _changed(stored: RunConfig, run: RunConfig) -> dict[str, list[str]]:
    changed = differences(stored, run)
    return {"changed": changed} if changed else {}


def _note_best(folder: RunFolder) -> None:
    """Make `best_valid` of results.json, if there is one, that of the journal as it is now."""
    results, best = folder.results(), journal.best(journal.read(folder.metrics))
    if results.get("best_valid", best) != best:
        folder.note_results({"best_valid": best})


def _record_resume(
    run: RunConfig, folder: RunFolder, starts: list[Provenance], record: dict[str, Any]
) -> None:
    """Write the provenance, then the settings of the resumed run."""
    first, *resumed = starts
    folder.write("provenance", {**first, "resumed": [*resumed, record]})
    folder.adopt_settings(run)
