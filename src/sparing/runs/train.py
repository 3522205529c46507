"""One run from settings to results."""

from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sparing import device
from sparing.config import differences
from sparing.data.fetch import home
from sparing.data.stream import Cursor, Stream, StreamConfig
from sparing.data.tokens import Tokens, first_bytes, prepare
from sparing.device import Hardware
from sparing.errors import UserError
from sparing.evaluate.loss import carried
from sparing.files import locked
from sparing.launch import launch
from sparing.models import FAMILIES
from sparing.models.api import LanguageModel, State
from sparing.runs.build import build_model, prepare_for
from sparing.runs.config import RunConfig, for_vocab, from_json, to_json
from sparing.runs.folder import RunFolder, create, is_run, open_run, prepare_for_run
from sparing.runs.provenance import provenance
from sparing.train import checkpoint, journal
from sparing.train.capture import capture, handed_out, restore, resumable, second_pass
from sparing.train.checkpoint import Checkpoint
from sparing.train.clock import Clock
from sparing.train.distributed import Joining, Loss, Ranks, together
from sparing.train.journal import Journal, Silence
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
    timeout_s: float = 600.0
    """How long several processes wait for each other before they give up."""
    sharded: bool = False
    """Whether weights, gradients and optimizer state are cut up between the processes."""
    restarted: bool = False
    """Whether a launcher started the processes anew and `resume` was not asked for."""


RANK_STRIDE = 1_000_003
"""Between the seeds of two ranks' dropout."""


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
    with together(launch(), hardware.device, _joining(run, options)) as ranks:
        # From here on rank 0 may change the folder that all have looked at.
        ranks.agree("settings, texts or options", _facts(run, tokens, hardware, options))
        training = _training(run, tokens, hardware, ranks)
        training.head_start_s = options.head_start_s
        return _within(run, path, training, tokens, options)


def refuse_unfit(run: RunConfig) -> None:
    """What several processes, or a batch in small pieces, cannot train; said before any work."""
    if launch().size > 1 and FAMILIES[run.family].model.alone:
        raise UserError(f"a {run.family} is trained by one process; run its seeds side by side")
    if _apart(run) and run.train.batch < 2 * run.train.batch_split:
        raise UserError(
            "model.turn keeps lanes of every piece apart, so pieces need two: raise train.batch or "
            "lower train.batch_split"
        )


def rehearse(run: RunConfig, tokens: Tokens) -> None:
    """Refuse what one process could not train on this text, without training it."""
    run = for_vocab(run, tokens.vocab.size)
    refuse_unfit(run)
    _stream(tokens, _cutting(run), Ranks())


def _apart(run: RunConfig) -> bool:
    return build_model(run, "meta").apart


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


def _joining(run: RunConfig, options: TrainOptions) -> Joining:
    size, batch = launch().size, run.train.batch
    if batch % size:
        raise UserError(f"train.batch {batch} lanes cannot be dealt to {size} processes alike")
    return Joining(
        timeout_s=options.timeout_s, reduction=run.train.reduction, sharded=options.sharded
    )


def _within(
    run: RunConfig, path: Path, training: Training, tokens: Tokens, options: TrainOptions
) -> int:
    """Train while rank 0 holds the folder."""
    leading = training.ranks.rank == 0
    # What is left of an earlier start of this launch may take a moment to die.
    wait_s = options.timeout_s if options.restarted else 0.0
    with locked(path, wait_s=wait_s) if leading else nullcontext():
        if leading and is_run(path) and not options.resume:
            raise UserError(f"{path} was made a run by another process just now")
        folder = _start(run, path, training, tokens, options)
        desk = _desk(run, folder, tokens, training, options)
        desk.bar.say(f"run {path}")
        _tell_of_restart(desk, training, options)
        try:
            signal = fit(training, run.train, run.schedule, desk)
        finally:
            desk.bar.close()
            desk.journal.close()
        if leading:
            folder.note_results(_summary(training, folder))
    if leading and not signal:
        _refuse_divergence(training, folder)
    return signal


def _tell_of_restart(desk: Desk, training: Training, options: TrainOptions) -> None:
    if not options.restarted:
        return
    step, size = training.progress.step, training.ranks.size
    what = f"started anew by torchrun with {size} processes; went on from step {step}"
    desk.journal.note("event", step, what=what)
    desk.bar.say(f"step {step}: {what}")


def _tokens(run: RunConfig, path: Path, options: TrainOptions) -> Tokens:
    # Of the processes of a machine the first prepares the text, and the others find it.
    turn = home() / "downloads" / ".locks" / "tokens"
    with locked(turn, wait=True) if launch().size > 1 else nullcontext():
        if not options.resume:
            return prepare(run.data, options.source, progress=options.progress)
        return prepare_for_run(open_run(path), run.data, options.source, progress=options.progress)


def _start(
    run: RunConfig, path: Path, training: Training, tokens: Tokens, options: TrainOptions
) -> RunFolder:
    """The folder of a new run, or of an old one with `training` as it stood at its checkpoint."""
    folder, leading = RunFolder(path), training.ranks.rank == 0
    record = provenance(training.hardware, run.train.seed)
    if not options.resume:
        if leading:
            create(path, run, tokens.vocab, record, texts=tokens.texts())
        return folder
    before = from_json(training.ranks.told(to_json(folder.config()) if leading else None))
    _refuse_other_lanes(before, run)
    there = leading and bool(checkpoint.present(folder.checkpoints))
    if training.ranks.told(options.checkpoint != "last" or there):
        _go_on(run, before, folder, training, options.checkpoint)
        cutting = training.stream.config
        training.stream = _stream(tokens, cutting, training.ranks, training.progress.cursor)
    if not leading:
        return folder
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
    ranks = training.ranks
    leading = ranks.rank == 0
    saved = handed_out(
        ranks, checkpoint.load(folder.checkpoints, name, run.identity()) if leading else None
    )
    assert saved is not None
    changed = before.optim != run.optim or before.schedule != run.schedule
    if not changed and resumable(saved):
        restore(training, saved)
    else:
        second_pass(training, saved)
        if spent(training, run.train, Clock(training.progress.elapsed_s)) >= 1:
            raise UserError(
                "the run's budget is spent; name a larger total of steps, epochs or minutes"
            )
        changed = True
    if changed or name != "last":
        _begin_from(folder, training, run, name)


def _begin_from(folder: RunFolder, training: Training, run: RunConfig, name: str) -> None:
    """Make where `training` stands the run's `last`, before it is written down that it was resumed.

    A kill in between must neither turn a second pass into a plain continuation nor bring back what
    `name` was chosen over.
    """
    captured = capture(training)
    if training.ranks.rank:
        return
    if name == "previous":
        # Else `last` would take its name, and the same command mean another checkpoint.
        checkpoint.drop(folder.checkpoints, "last")
    checkpoint.save(folder.checkpoints, "last", captured, run.identity())


def _refuse_other_lanes(before: RunConfig, run: RunConfig) -> None:
    """What the carried state and the stream's position belong to cannot change under way.

    Nor can the pieces of which a super-net's held lanes are the last.
    """
    settings = ["train.batch:", "data.", *(["train.batch_split:"] if _apart(run) else [])]
    fixed = [each for each in differences(before, run) if each.startswith(tuple(settings))]
    if fixed:
        raise UserError(f"a resumed run cannot change {fixed[0]}; start a new one")


def _training(run: RunConfig, tokens: Tokens, hardware: Hardware, ranks: Ranks) -> Training:
    device.seed_everything(run.train.seed)
    model = prepare_for(hardware, build_model(run, hardware.device), compiled=run.train.compiled)
    # The same weights everywhere, but not the same dropout.
    if ranks.rank:
        device.seed_everything((run.train.seed + RANK_STRIDE * ranks.rank) % (1 << 63))
    split, loss = tokens.split("train"), ranks.wrapped(Loss(model))
    training = Training(
        model=model,
        loss=loss,
        optimizer=build_optimizer(model, run.optim),
        stream=_stream(
            tokens,
            _cutting(run, filled=run.train.compiled and hardware.device.type == "cuda"),
            ranks,
        ),
        hardware=hardware,
        scale=LossScale.for_precision(hardware.precision),
        state=State(),
        clip=run.optim.clip,
        bytes_per_token=split.size_bytes / len(split.ids),
        ranks=ranks,
        launched=launch().id is not None,
    )
    training.state = training.fresh_state(len(ranks.lanes(run.train.batch)))
    return training


def _cutting(run: RunConfig, *, filled: bool = False) -> StreamConfig:
    t = run.train
    return StreamConfig(
        batch=t.batch,
        segment=t.segment,
        randomised=t.randomised,
        length_std=t.length_std,
        halved=t.halved,
        longest=t.longest,
        seed=t.seed,
        filled=filled,
    )


def _stream(
    tokens: Tokens, cutting: StreamConfig, ranks: Ranks, cursor: Cursor | None = None
) -> Stream:
    stream = Stream(tokens.split("train"), cutting, ranks.lanes(cutting.batch), cursor or Cursor())
    # Too small a text is refused here, before anything is written.
    stream.segments()
    return stream


def _desk(
    run: RunConfig, folder: RunFolder, tokens: Tokens, training: Training, options: TrainOptions
) -> Desk:
    """Rank 0's writes; the others' only reads, and what rank 0 hands out."""
    identity, ranks = run.identity(), training.ranks
    leading = ranks.rank == 0

    def load(name: str) -> Checkpoint | None:
        there = leading and checkpoint.exists(folder.checkpoints, name)
        found = checkpoint.load(folder.checkpoints, name, identity) if there else None
        return handed_out(ranks, found)

    def save(name: str, saved: Checkpoint) -> None:
        if leading:
            checkpoint.save(folder.checkpoints, name, saved, identity)

    board, step = folder.path / "tensorboard", training.progress.step
    return Desk(
        journal=Journal(folder.metrics, board, step) if leading else Silence(),
        bar=Bar(shown=options.progress and leading),
        save=save,
        load=load,
        judge=partial(_judge, run, tokens, training),
    )


def _judge(
    run: RunConfig, tokens: Tokens, training: Training, model: LanguageModel
) -> dict[str, Any]:
    split = tokens.split("valid")
    if run.train.evaluate_bytes is not None:
        split = first_bytes(split, run.train.evaluate_bytes, tokens.vocab)
    e = run.evaluate
    protocol = "bytes" if run.data.newlines else "no-newlines"
    result = carried(
        model,
        split,
        training.hardware,
        batch=e.batch,
        segment=e.segment,
        protocol=protocol,
        ranks=training.ranks,
    )
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
