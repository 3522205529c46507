"""One run from settings to results."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sparing import device
from sparing.config import differences
from sparing.data.stream import Cursor, Stream, StreamConfig
from sparing.data.tokens import Tokens, first_bytes, prepare
from sparing.device import Hardware
from sparing.errors import UserError
from sparing.evaluate.loss import carried
from sparing.files import locked
from sparing.models.api import LanguageModel
from sparing.runs.build import build_model, prepare_for
from sparing.runs.config import RunConfig, for_vocab, to_json
from sparing.runs.folder import RunFolder, create, is_run, open_run, prepare_for_run
from sparing.runs.provenance import provenance
from sparing.train import checkpoint, journal
from sparing.train.capture import capture, restore, resumable, second_pass
from sparing.train.checkpoint import Checkpoint
from sparing.train.clock import Clock
from sparing.train.journal import Journal
from sparing.train.loop import fit, spent
from sparing.train.optim import build_optimizer
from sparing.train.progress import Bar
from sparing.train.scale import LossScale
from sparing.train.training import Desk, Training


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


def train(run: RunConfig, path: Path, options: TrainOptions) -> int:
    """Train into `path`; returns 0, or the number of the signal that ended it early."""
    hardware = device.pick(options.device, run.train.precision)
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file; --out names a folder")
    if is_run(path) and not options.resume:
        raise UserError(f"{path} already holds a run; add --resume to go on, or change --out")
    if options.resume and not is_run(path):
        raise UserError(f"there is no run in {path} to resume; leave --resume out to start one")
    tokens = _tokens(run, path, options)
    run = for_vocab(run, tokens.vocab.size)
    device.seed_everything(run.train.seed)
    training = _training(run, tokens, hardware)
    training.head_start_s = options.head_start_s
    with locked(path):
        if is_run(path) and not options.resume:
            raise UserError(f"{path} was made a run by another process just now")
        folder = _start(run, path, training, tokens, options)
        desk = _desk(run, folder, tokens, training, options)
        desk.bar.say(f"run {path}")
        try:
            signal = fit(training, run.train, run.schedule, desk)
        finally:
            desk.bar.close()
            desk.journal.close()
        folder.note_results(_summary(training, folder))
    if not signal:
        _refuse_divergence(training, folder)
    return signal


def _tokens(run: RunConfig, path: Path, options: TrainOptions) -> Tokens:
    if not options.resume:
        return prepare(run.data, options.source, progress=options.progress)
    return prepare_for_run(open_run(path), run.data, options.source, progress=options.progress)


def _start(
    run: RunConfig, path: Path, training: Training, tokens: Tokens, options: TrainOptions
) -> RunFolder:
    """The folder of a new run, or of an old one with `training` as it stood at its checkpoint."""
    record = provenance(training.hardware, run.train.seed)
    if not options.resume:
        return create(path, run, tokens.vocab, record, texts=tokens.texts())
    folder = open_run(path)
    before = folder.config()
    _refuse_other_lanes(before, run)
    if options.checkpoint != "last" or checkpoint.present(folder.checkpoints):
        _go_on(run, before, folder, training, options.checkpoint)
        training.stream = _stream(run, tokens, training.progress.cursor)
    journal.rewind(folder.metrics, training.progress.journal_bytes)
    if before != run:
        record["changed"] = differences(before, run)
        folder.write("config", to_json(run))
    first = folder.read("provenance")
    folder.write("provenance", {**first, "resumed": [*first.get("resumed", []), record]})
    return folder


def _go_on(
    run: RunConfig, before: RunConfig, folder: RunFolder, training: Training, name: str
) -> None:
    """Bring `training` to where a checkpoint left off, or begin a second pass from its weights."""
    saved = checkpoint.load(folder.checkpoints, name, run.identity())
    changed = before.optim != run.optim or before.schedule != run.schedule
    if not changed and resumable(saved):
        restore(training, saved)
        return
    second_pass(training, saved)
    if spent(training, run.train, Clock(training.progress.elapsed_s)) >= 1:
        raise UserError(
            "the run's budget is spent; name a larger total of steps, epochs or minutes"
        )
    # Before the new settings are written down: a kill in between must not turn the second pass into
    # a plain continuation.
    checkpoint.save(folder.checkpoints, "last", capture(training), run.identity())


def _refuse_other_lanes(before: RunConfig, run: RunConfig) -> None:
    """What the carried state and the stream's position belong to cannot change under way."""
    fixed = [
        difference
        for difference in differences(before, run)
        if difference.startswith(("train.batch:", "data."))
    ]
    if fixed:
        raise UserError(f"a resumed run cannot change {fixed[0]}; start a new one")


def _training(run: RunConfig, tokens: Tokens, hardware: Hardware) -> Training:
    model = prepare_for(hardware, build_model(run, hardware.device), compiled=run.train.compiled)
    split = tokens.split("train")
    return Training(
        model=model,
        optimizer=build_optimizer(model, run.optim),
        stream=_stream(run, tokens, Cursor(0, 0, 0)),
        hardware=hardware,
        scale=LossScale.for_precision(hardware.precision),
        state=model.initial_state(run.train.batch),
        clip=run.optim.clip,
        bytes_per_token=split.size_bytes / len(split.ids),
    )


def _stream(run: RunConfig, tokens: Tokens, cursor: Cursor) -> Stream:
    t = run.train
    settings = StreamConfig(
        batch=t.batch,
        segment=t.segment,
        randomised=t.randomised,
        length_std=t.length_std,
        halved=t.halved,
        longest=t.longest,
        seed=t.seed,
    )
    stream = Stream(tokens.split("train"), settings, cursor=cursor)
    # Too small a text is refused here, before anything is written.
    stream.segments()
    return stream


def _desk(
    run: RunConfig, folder: RunFolder, tokens: Tokens, training: Training, options: TrainOptions
) -> Desk:
    identity, step = run.identity(), training.progress.step

    def load(name: str) -> Checkpoint | None:
        if not checkpoint.exists(folder.checkpoints, name):
            return None
        return checkpoint.load(folder.checkpoints, name, identity)

    return Desk(
        journal=Journal(folder.metrics, folder.path / "tensorboard", step),
        bar=Bar(shown=options.progress),
        save=lambda name, saved: checkpoint.save(folder.checkpoints, name, saved, identity),
        load=load,
        judge=partial(_judge, run, tokens, training.hardware),
    )


def _judge(
    run: RunConfig, tokens: Tokens, hardware: Hardware, model: LanguageModel
) -> dict[str, Any]:
    split = tokens.split("valid")
    if run.train.evaluate_bytes is not None:
        split = first_bytes(split, run.train.evaluate_bytes, tokens.vocab)
    e = run.evaluate
    protocol = "bytes" if run.data.newlines else "no-newlines"
    result = carried(model, split, hardware, batch=e.batch, segment=e.segment, protocol=protocol)
    return result.to_json()


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


def _summary(training: Training, folder: RunFolder) -> dict[str, Any]:
    """The run's figures so far, from its journal."""
    p, entries = training.progress, journal.read(folder.metrics)
    valid = [entry for entry in entries if entry["kind"] == "valid"]
    best = min(valid, key=lambda entry: entry["nats_per_token"], default=None)
    return {
        "training": {
            "steps": p.step,
            "tokens": p.tokens,
            "elapsed_s": p.elapsed_s,
            "tokens_per_s": p.tokens / max(p.elapsed_s, 1e-9),
            "peak_bytes": training.hardware.peak_bytes(),
        },
        "best_valid": best,
    }
