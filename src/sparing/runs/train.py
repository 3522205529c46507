"""Train a run: from settings to a folder with results."""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparing import device
from sparing.data.textfile import cache_dir
from sparing.data.tokens import Tokens, prepare
from sparing.device import Hardware
from sparing.errors import UserError
from sparing.files import claim_folder, lock_folder, remove_leftovers
from sparing.launch import current_launch
from sparing.runs.build import build_training
from sparing.runs.callbacks import build_callbacks
from sparing.runs.check import check_trainable
from sparing.runs.config import RunConfig, for_vocab, to_json
from sparing.runs.finetune import Init, adapt_to_init, load_init
from sparing.runs.folder import (
    RunFolder,
    create,
    is_run,
    open_run,
    prepare_for_run,
    refuse_used_folder,
)
from sparing.runs.provenance import provenance
from sparing.runs.resume import ResumeOptions, resume
from sparing.training import checkpoint, journal
from sparing.training.capture import capture
from sparing.training.distributed.init import init_world
from sparing.training.distributed.world import WorldConfig
from sparing.training.loop import budget_used, fit
from sparing.training.recovery import report_event
from sparing.training.remarks import remarks
from sparing.training.state import Callbacks, Training
from sparing.training.stopping import Clock, Pace
from sparing.units import pluralize


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainOptions:
    """Options of a call that are not settings of the run."""

    device: str = "auto"
    resume: bool = False
    checkpoint: str = "last"
    source: Path | None = None
    """Local copy of the corpus."""
    progress: bool = True
    head_start_s: float = 0.0
    """Time this process spent before; it counts against a budget in minutes."""
    timeout_s: float = 600.0
    """How long processes wait for each other before they give up."""
    sharded: bool = False
    """Whether weights, gradients and optimizer state are sharded across the processes."""
    restarted: bool = False
    """Whether a launcher restarted the processes, rather than the user resuming the run."""
    cut_journal: bool = False
    """Whether a damaged journal is continued without its unreadable lines."""
    init: Init | None = None
    """What a new run starts from, instead of weights drawn at random."""
    pace: Pace | None = None
    """What a budget in minutes is counted by, in place of the clock."""
    until: float = 1.0
    """Share of the budget after which to stop; schedules are of the whole."""
    exit_on_second_interrupt: bool = False
    """Whether a second Ctrl-C ends the process at once, only for the command line, instead of
    raising KeyboardInterrupt."""


def train(run: RunConfig, path: Path, options: TrainOptions) -> int:
    """Train a run in folder `path`; return 0, or the number of the signal that ended it early."""
    if options.init is not None:
        run = adapt_to_init(run, options.init)
    elif run.optim.trainable and not options.resume:
        raise UserError(
            "optim.trainable would freeze weights that were never trained; it needs `init`, a "
            "run to start from"
        )
    check_trainable(run)
    hardware = device.pick(options.device, run.train.precision)
    if not options.resume:
        refuse_used_folder(path, besides=_stored_first(options))
    elif not is_run(path):
        raise UserError(f"there is no run in {path} to resume; start one without `resume`")
    else:
        open_run(path).require_checkpoints()
    tokens = _tokens(run, path, options)
    run = for_vocab(run, tokens.vocab.size)
    # Building a model counts against a budget in minutes, preparing a text for the first time does
    # not.
    began_s = time.perf_counter()
    with (
        hardware.limit_to_free_ram(),
        init_world(current_launch(), hardware.device, _world_config(run, options)) as world,
    ):
        # From here on rank 0 may change the folder that all ranks have checked.
        world.check_equal("settings, texts or options", _facts(run, tokens, hardware, options))
        training = build_training(
            run, tokens.split("train"), hardware, world, head_start_s=options.head_start_s
        )
        training.pace, training.until = options.pace, options.until
        training.exit_on_second_interrupt = options.exit_on_second_interrupt
        if options.init is not None:
            load_init(training.model, options.init)
        training.head_start_s += time.perf_counter() - began_s
        return _train_in_folder(run, path, training, tokens, options)


def _tokens(run: RunConfig, path: Path, options: TrainOptions) -> Tokens:
    # The first process of a machine prepares the text, the others find it prepared.
    lock = cache_dir() / "downloads" / ".locks" / "tokens"
    with lock_folder(lock, wait_s=math.inf) if current_launch().size > 1 else nullcontext():
        if not options.resume:
            vocab = None if options.init is None else options.init.vocab
            return prepare(run.data, options.source, progress=options.progress, vocab=vocab)
        return prepare_for_run(open_run(path), run.data, options.source, progress=options.progress)


def _world_config(run: RunConfig, options: TrainOptions) -> WorldConfig:
    size, batch = current_launch().size, run.train.batch
    if batch % size:
        raise UserError(f"train.batch {batch} must be a multiple of the {size} processes")
    return WorldConfig(
        timeout_s=options.timeout_s, reduction=run.train.reduction, sharded=options.sharded
    )


def _facts(
    run: RunConfig, tokens: Tokens, hardware: Hardware, options: TrainOptions
) -> dict[str, Any]:
    """Everything that must be the same in all processes."""
    return {
        "run": to_json(run),
        "texts": tokens.text_sha256(),
        "precision": hardware.precision,
        "resume": options.resume,
        "checkpoint": options.checkpoint,
        "sharded": options.sharded,
        "init": None if options.init is None else options.init.sha256,
    }


def _train_in_folder(
    run: RunConfig, path: Path, training: Training, tokens: Tokens, options: TrainOptions
) -> int:
    """Train while rank 0 has the folder locked."""
    leading = training.world.rank == 0
    # Processes of an earlier start of this launch may take a moment to end.
    wait_s = options.timeout_s if options.restarted else 0.0
    claim = claim_folder(path, wait_s=wait_s) if leading else nullcontext()
    with claim, _add_way_on(path):
        if leading and not options.resume:
            # Another process may have been here since the first look.
            refuse_used_folder(path, besides=_stored_first(options))
        folder = _start(run, path, training, tokens, options)
        callbacks = build_callbacks(run, folder, tokens, training, progress=options.progress)
        callbacks.bar.print(f"run {path}")
        if options.resume and training.counters.step == 0:
            callbacks.bar.print("no step had been saved; starting from the beginning")
        _report_restart(callbacks, training, options)
        for remark in remarks(training, run.train, resumed=options.resume):
            callbacks.bar.print(remark)
        clock = Clock(training.counters.elapsed_s + training.head_start_s)
        try:
            signal = fit(training, run.train, run.schedule, callbacks)
        finally:
            callbacks.close()
        if leading:
            _write_results(folder, _summary(training, folder, clock.elapsed_s()))
    if leading and not signal:
        _check_any_step(training, run)
        _check_converging(training, folder)
    return signal


@contextmanager
def _add_way_on(path: Path) -> Iterator[None]:
    """Add to an error of the disk how to go on after it, if there is a run already."""
    try:
        yield
    except OSError as problem:
        if is_run(path):
            problem.add_note(f"to continue: sparing train --resume --out {path}")
        raise


def _start(
    run: RunConfig, path: Path, training: Training, tokens: Tokens, options: TrainOptions
) -> RunFolder:
    """Create the folder of a new run, or restore `training` from the folder of an old one."""
    folder, world = RunFolder(path), training.world
    if options.resume:
        start = ResumeOptions(checkpoint=options.checkpoint, cut_journal=options.cut_journal)
        resume(run, folder, training, tokens, start)
        return folder
    # Rank 0's clock decides for all, so that all ranks do the same.
    if world.broadcast_object(budget_used(training, run.train, Clock(training.head_start_s)) >= 1):
        _check_any_step(training, run)
    init = options.init
    captured = None if init is None else capture(training)
    if world.rank == 0:
        if captured is not None:
            # So that a resume needs the other run no longer; before config.json, which makes the
            # folder a run.
            stored = folder.checkpoints
            checkpoint.save(stored, "last", captured, run.identity(), rotate=False)
        remove_leftovers(path)
        record = provenance(training.hardware, run.train.seed)
        record |= {} if init is None else {"init": init.record()}
        record |= {} if options.pace is None else {"paced": True}
        create(path, run, tokens.vocab, record, texts=tokens.text_sha256())
    return folder


def _stored_first(options: TrainOptions) -> list[str]:
    """Checkpoints that a new run has before its config.json: a start may have been cut short."""
    return [] if options.init is None else ["last"]


def _check_any_step(training: Training, run: RunConfig) -> None:
    """Raise a UserError if starting up has already used the whole time budget."""
    if run.train.minutes is not None and training.counters.step == 0:
        raise UserError(
            f"no step was made: train.minutes={run.train.minutes:g} ({60 * run.train.minutes:.3g} "
            "s) ended before the first step; set more"
        )


def _report_restart(callbacks: Callbacks, training: Training, options: TrainOptions) -> None:
    if not options.restarted:
        return
    step, size = training.counters.step, pluralize(training.world.size, "process")
    report_event(callbacks, step, f"restarted by torchrun with {size} from step {step}")


def _write_results(folder: RunFolder, summary: Mapping[str, Any]) -> None:
    """Add a summary to results.json, unless a finished run was resumed and nothing changed."""
    stored = folder.results()
    steps = stored.get("training", {}).get("steps")
    if (steps, stored.get("best_valid")) != (summary["training"]["steps"], summary["best_valid"]):
        folder.note_results(summary)


def _summary(training: Training, folder: RunFolder, finished_s: float) -> dict[str, Any]:
    """The numbers of a run so far. `finished_s` includes saving and validation."""
    counters, entries = training.counters, journal.read(folder.metrics)
    return {
        "training": {
            "steps": counters.step,
            "tokens": counters.tokens,
            "elapsed_s": counters.elapsed_s,
            "finished_s": finished_s,
            "spent_s": dict(counters.spent_s),
            "tokens_per_s": counters.tokens / max(counters.elapsed_s, 1e-9),
            "peak_bytes": training.hardware.peak_bytes(),
        },
        "best_valid": journal.best(entries),
    }


def _check_converging(training: Training, folder: RunFolder) -> None:
    """Raise a UserError if the run ended without a finite loss."""
    counters, entries = training.counters, journal.read(folder.metrics)
    step = counters.step
    validated = any(entry["kind"] == "valid" and entry["step"] == step for entry in entries)
    if validated and counters.bad_steps < max(1, step):
        return
    what = "loss of every step" if validated else f"valid loss at step {step}"
    kept = checkpoint.exists(folder.checkpoints, "best")
    raise UserError(
        f"run {folder.path} diverged: the {what} is not finite; lower optim.lr or optim.clip"
        f"{' (`best` still holds the best weights)' if kept else ''}"
    )
