"""One run from settings to results."""

import math
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparing import device
from sparing.data.fetch import home
from sparing.data.tokens import Tokens, prepare
from sparing.device import Hardware, ram_bytes
from sparing.errors import UserError
from sparing.files import claimed, locked
from sparing.launch import launch
from sparing.models import FAMILIES
from sparing.models.api import LanguageModel
from sparing.runs.build import build_model, build_stream, build_training, stream_config
from sparing.runs.callbacks import build_callbacks
from sparing.runs.config import RunConfig, for_vocab, to_json
from sparing.runs.folder import RunFolder, create, is_run, open_run, prepare_for_run
from sparing.runs.provenance import provenance
from sparing.runs.resume import resume
from sparing.train import checkpoint, journal
from sparing.train.distributed.ddp import WorldConfig
from sparing.train.distributed.init import init_world
from sparing.train.distributed.world import World
from sparing.train.loop import fit, spent
from sparing.train.progress import Clock
from sparing.train.state import Callbacks, Training
from sparing.units import human_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainOptions:
    """What belongs to this call rather than to the run."""

    device: str = "auto"
    resume: bool = False
    checkpoint: str = "last"
    source: Path | None = None
    """Local copy of the corpus."""
    progress: bool = True
    head_start_s: float = 0.0
    """Time the process has already spent; it counts against a budget in minutes."""
    timeout_s: float = 600.0
    """How long several processes wait for each other before they give up."""
    sharded: bool = False
    """Whether weights, gradients and optimizer state are cut up between the processes."""
    restarted: bool = False
    """Whether a launcher started the processes anew and `resume` was not asked for."""


def train(run: RunConfig, path: Path, options: TrainOptions) -> int:
    """Train into `path`; returns 0, or the number of the signal that ended it early."""
    refuse_unfit(run)
    hardware = device.pick(options.device, run.train.precision)
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file; --out names a folder")
    if is_run(path) and not options.resume:
        raise UserError(f"{path} already holds a run; add --resume to go on, or change --out")
    if options.resume and not is_run(path):
        raise UserError(f"there is no run in {path} to resume; leave --resume out to start one")
    tokens = _tokens(run, path, options)
    run = for_vocab(run, tokens.vocab.size)
    with (
        hardware.limited_to_free_ram(),
        init_world(launch(), hardware.device, _joining(run, options)) as world,
    ):
        # From here on rank 0 may change the folder that all have looked at.
        world.check_equal("settings, texts or options", _facts(run, tokens, hardware, options))
        training = build_training(run, tokens.split("train"), hardware, world)
        training.head_start_s = options.head_start_s
        return _within(run, path, training, tokens, options)


def refuse_unfit(run: RunConfig) -> None:
    """What several processes, a batch in pieces or this machine cannot train, before any work."""
    if launch().size > 1 and FAMILIES[run.family].model.single_process:
        raise UserError(f"a {run.family} is trained by one process; run its seeds side by side")
    model = build_model(run, "meta")
    _refuse_beyond_memory(model)
    if model.fixed_micro_batches and run.train.batch < 2 * run.train.micro_batches:
        raise UserError(
            "model.turn keeps lanes of every piece apart, so pieces need two: raise train.batch or "
            "lower train.micro_batches"
        )


def _refuse_beyond_memory(model: LanguageModel) -> None:
    """Weights are drawn on the CPU; asked for bit by bit, too many would get the process killed."""
    count = sum(parameter.numel() for parameter in model.parameters())
    size = sum(parameter.nbytes for parameter in model.parameters())
    if size > ram_bytes():
        held = human_bytes(ram_bytes())
        raise UserError(
            f"{count:,} parameters take {human_bytes(size)}, and this machine has {held}; "
            "choose smaller sizes"
        )


def rehearse(run: RunConfig, tokens: Tokens) -> None:
    """Refuse what one process could not train on this text, without training it."""
    run = for_vocab(run, tokens.vocab.size)
    refuse_unfit(run)
    build_stream(tokens, stream_config(run), World())


def _tokens(run: RunConfig, path: Path, options: TrainOptions) -> Tokens:
    # Of the processes of a machine the first prepares the text, and the others find it.
    turn = home() / "downloads" / ".locks" / "tokens"
    with locked(turn, wait_s=math.inf) if launch().size > 1 else nullcontext():
        if not options.resume:
            return prepare(run.data, options.source, progress=options.progress)
        return prepare_for_run(open_run(path), run.data, options.source, progress=options.progress)


def _joining(run: RunConfig, options: TrainOptions) -> WorldConfig:
    size, batch = launch().size, run.train.batch
    if batch % size:
        raise UserError(f"train.batch {batch} lanes cannot be dealt to {size} processes alike")
    return WorldConfig(
        timeout_s=options.timeout_s, reduction=run.train.reduction, sharded=options.sharded
    )


def _facts(
    run: RunConfig, tokens: Tokens, hardware: Hardware, options: TrainOptions
) -> dict[str, Any]:
    """What must be the same for all processes, or each would do something else."""
    return {
        "run": to_json(run),
        "texts": tokens.texts(),
        "precision": hardware.precision,
        "resume": options.resume,
        "checkpoint": options.checkpoint,
        "sharded": options.sharded,
    }


def _within(
    run: RunConfig, path: Path, training: Training, tokens: Tokens, options: TrainOptions
) -> int:
    """Train while rank 0 holds the folder."""
    leading = training.world.rank == 0
    # What is left of an earlier start of this launch may take a moment to die.
    wait_s = options.timeout_s if options.restarted else 0.0
    with claimed(path, wait_s=wait_s) if leading else nullcontext():
        if leading and is_run(path) and not options.resume:
            raise UserError(f"{path} was made a run by another process just now")
        folder = _start(run, path, training, tokens, options)
        callbacks = build_callbacks(run, folder, tokens, training, progress=options.progress)
        callbacks.bar.say(f"run {path}")
        _tell_of_restart(callbacks, training, options)
        try:
            signal = fit(training, run.train, run.schedule, callbacks)
        finally:
            callbacks.bar.close()
            callbacks.journal.close()
        if leading:
            _note(folder, _summary(training, folder))
    if leading and not signal:
        _refuse_stepless(training, run)
        _refuse_divergence(training, folder)
    return signal


def _start(
    run: RunConfig, path: Path, training: Training, tokens: Tokens, options: TrainOptions
) -> RunFolder:
    """The folder of a new run, or of an old one with `training` as it stood at its checkpoint."""
    folder, world = RunFolder(path), training.world
    if options.resume:
        resume(run, folder, training, tokens, name=options.checkpoint)
        return folder
    # Rank 0's clock decides, or some would refuse what others begin.
    if world.broadcast_object(spent(training, run.train, Clock(training.head_start_s)) >= 1):
        _refuse_stepless(training, run)
    if world.rank == 0:
        record = provenance(training.hardware, run.train.seed)
        create(path, run, tokens.vocab, record, texts=tokens.texts())
    return folder


def _refuse_stepless(training: Training, run: RunConfig) -> None:
    """Only time can be spent before the first step, for that of starting counts, now or before a
    resume."""
    if run.train.minutes is not None and training.progress.step == 0:
        raise UserError(
            f"no step was made: train.minutes={run.train.minutes:g} are "
            f"{60 * run.train.minutes:.3g} s, over before the first; name more"
        )


def _tell_of_restart(callbacks: Callbacks, training: Training, options: TrainOptions) -> None:
    if not options.restarted:
        return
    step, size = training.progress.step, training.world.size
    what = f"started anew by torchrun with {size} processes; went on from step {step}"
    callbacks.journal.note("event", step, what=what)
    callbacks.bar.say(f"step {step}: {what}")


def _note(folder: RunFolder, summary: Mapping[str, Any]) -> None:
    """Add the figures to results.json; a finished run that is resumed has none to add."""
    stored = folder.results()
    steps = (stored.get("training") or {}).get("steps")
    if (steps, stored.get("best_valid")) != (summary["training"]["steps"], summary["best_valid"]):
        folder.note_results(summary)


def _summary(training: Training, folder: RunFolder) -> dict[str, Any]:
    """The run's figures so far, from its journal."""
    p, entries = training.progress, journal.read(folder.metrics)
    return {
        "training": {
            "steps": p.step,
            "tokens": p.tokens,
            "elapsed_s": p.elapsed_s,
            "finished_s": training.finished_s,
            "tokens_per_s": p.tokens / max(p.elapsed_s, 1e-9),
            "peak_bytes": training.hardware.peak_bytes(),
        },
        "best_valid": journal.best(entries),
    }


def _refuse_divergence(training: Training, folder: RunFolder) -> None:
    """A run that ends without a finite loss has not done what was asked for."""
    p, entries = training.progress, journal.read(folder.metrics)
    judged = [entry["step"] for entry in entries if entry["kind"] == "valid"]
    if p.step in judged and p.bad < max(1, p.step):
        return
    what = f"valid loss at step {p.step}" if p.step not in judged else "loss of every step"
    kept = checkpoint.exists(folder.checkpoints, "best")
    raise UserError(
        f"run {folder.path} diverged: the {what} is not finite; lower optim.lr or optim.clip"
        f"{' (best still holds the best weights there were)' if kept else ''}"
    )
