"""The training loop."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from sparing import units
from sparing.data.stream import Segment, prefetch
from sparing.training.capture import capture, capture_optimizer, capture_weights, position
from sparing.training.checkpoint import Checkpoint
from sparing.training.config import TrainConfig
from sparing.training.journal import measurement
from sparing.training.recovery import (
    check_gradients,
    report_skipped,
    roll_back,
    step_within_memory,
)
from sparing.training.reset import begin_segment
from sparing.training.schedule import ScheduleConfig, lr_factor
from sparing.training.state import Callbacks, Counters, Training
from sparing.training.step import StepResult
from sparing.training.stopping import Clock, stopping


def fit(
    training: Training, config: TrainConfig, schedule: ScheduleConfig, callbacks: Callbacks
) -> int:
    """Train until the budget is used up (returns 0) or a signal arrives (returns its number)."""
    counters = training.counters
    clock = Clock(counters.elapsed_s + training.head_start_s)
    segments = prefetch(training.stream.segments(), training.hardware.device)
    training.model.train()
    counters.spend("start", training.head_start_s)
    with stopping(
        callbacks.bar.print,
        launched=training.launched,
        exit_on_second_interrupt=training.exit_on_second_interrupt,
    ) as stop:
        training.world.attach(stop, clock)
        while not stop.requested and not training.model.converged:
            if (share := budget_used(training, config, clock)) >= training.until:
                break
            with counters.spending("steps"):
                segment = begin_segment(training, next(segments), config)
                by_length = segment.length / config.segment if config.lr_by_length else 1.0
                training.optimizer.scale_lr(by_length * scheduled_lr(counters, schedule, share))
                training.model.before_step(counters.step, share)
                result = step_within_memory(training, config, segment, callbacks)
                check_gradients(training, callbacks)
                count(training, segment, result, callbacks)
            callbacks.check_saved()
            counters.elapsed_s = clock.elapsed_s()
            if counters.bad_steps >= config.bad_steps:
                roll_back(training, callbacks, segment.inputs_BT.size(0))
            update_progress_bar(training, callbacks, budget_used(training, config, clock))
            if counters.step % config.log_every == 0:
                log(training, callbacks, result.grad_norm.item())
            if validation_due(counters, segment, config):
                validate(training, callbacks)
            # Weights without a finite loss must not replace good ones.
            checkpoint_due = counters.step % config.checkpoint_every == 0
            if checkpoint_due and check_gradients(training, callbacks):
                first = training.saved_step is None
                save_last(training, callbacks)
                if first:
                    # While there is none, a resume starts from the beginning: no step after it
                    # must have been made if it fails.
                    finish_saving(training, callbacks)
        counters.elapsed_s = clock.elapsed_s()
        finish(training, config, callbacks, interrupted=stop.requested)
    return stop.cause


def finish(
    training: Training, config: TrainConfig, callbacks: Callbacks, *, interrupted: bool
) -> None:
    """Save first, then validate: validation takes time and may fail."""
    check_gradients(training, callbacks)
    whole = interrupted or config.keep_state
    # What is there of this step may hold a state that is not wanted.
    if training.saved_step != training.counters.step or (training.saved_whole and not whole):
        save_last(training, callbacks, whole=whole)
    if not interrupted and validate(training, callbacks):
        sync_journal(training, callbacks)
        kept = training.saved_whole
        update = capture_optimizer(training) if kept else Checkpoint({}, position(training))
        with training.counters.spending("checkpoints"):
            callbacks.update_checkpoint("last", update)
    finish_saving(training, callbacks)


def budget_used(training: Training, config: TrainConfig, clock: Clock) -> float:
    """The share of the budget used so far: steps, epochs or minutes, whichever ends first."""
    counters, shares = training.counters, [0.0]
    if config.steps:
        shares.append(counters.step / config.steps)
    if config.epochs:
        shares.append(counters.tokens / (config.epochs * training.stream.tokens_per_epoch))
    if config.minutes:
        pace = training.pace
        used_s = clock.shared_s() if pace is None else pace.seconds_at(counters.step)
        shares.append(used_s / (60 * config.minutes))
    return max(shares)


def scheduled_lr(counters: Counters, schedule: ScheduleConfig, share: float) -> float:
    """The schedule's factor on the learning rate, counted from the start of the current pass."""
    if counters.pass_share is None:
        counters.pass_share = share
    done = (share - counters.pass_share) / max(1e-9, 1 - counters.pass_share)
    return lr_factor(schedule, counters.step - counters.pass_step + 1, done)


def count(training: Training, segment: Segment, result: StepResult, callbacks: Callbacks) -> None:
    """Add a step to the counters and report it if it was skipped."""
    counters = training.counters
    if result.updated:
        training.unchecked_norms.append(result.grad_norm)
        counters.pending_nats += result.loss_nats
        counters.pending_tokens += segment.count
    else:
        report_skipped(training, callbacks, result)
    counters.step += 1
    counters.tokens += segment.count
    counters.cursor = segment.cursor


def update_progress_bar(training: Training, callbacks: Callbacks, share: float) -> None:
    """Show step, loss and speed."""
    counters = training.counters
    mean = counters.pending_nats / max(1, counters.pending_tokens)
    bits = units.bits_per_byte(mean, 1) / training.bytes_per_token
    speed = counters.tokens * training.bytes_per_token / max(counters.elapsed_s, 1e-9)
    callbacks.bar.update(
        share / training.until,
        f"step {counters.step}  loss {mean:.3f}  {bits:.3f} bits/byte  "
        f"{units.format_bytes(speed)}/s",
    )


def log(training: Training, callbacks: Callbacks, grad_norm: float) -> None:
    """Write a `train` entry to the journal, with the mean loss since the last one."""
    check_gradients(training, callbacks)
    counters = training.counters
    mean = counters.pending_nats / counters.pending_tokens if counters.pending_tokens else None
    bits = None if mean is None else units.bits_per_byte(mean, 1) / training.bytes_per_token
    speed = counters.pending_tokens / max(counters.elapsed_s - counters.logged_s, 1e-9)
    with training.world.full_params(training.loss):
        telemetry = training.model.telemetry()
    callbacks.journal.note(
        "train",
        counters.step,
        tokens=counters.tokens,
        epoch=counters.tokens / training.stream.tokens_per_epoch,
        nats_per_token=mean,
        bits_per_byte=bits,
        steps_share=counters.spent_s["steps"] / max(counters.elapsed_s, 1e-9),
        lr=training.optimizer.lr,
        grad_norm=grad_norm if math.isfinite(grad_norm) else None,
        loss_scale=training.scale.value,
        **telemetry,
        elapsed_s=counters.elapsed_s,
        tokens_per_s=speed,
        peak_bytes=training.hardware.peak_bytes(),
    )
    counters.pending_nats, counters.pending_tokens = 0.0, 0
    counters.logged_s = counters.elapsed_s


def validation_due(counters: Counters, segment: Segment, config: TrainConfig) -> bool:
    """Every `evaluate_every` steps if that is set, otherwise at the end of each epoch."""
    if config.evaluate_every:
        return counters.step % config.evaluate_every == 0
    return segment.cursor.position == 0


def validate(training: Training, callbacks: Callbacks) -> bool:
    """Write a `valid` entry and save the weights as `best` if they are.

    Returns False if this step has been validated already.
    """
    counters = training.counters
    if counters.validated_step == counters.step:
        return False
    counters.validated_step = counters.step
    check_gradients(training, callbacks)
    found = validate_candidates(training, callbacks)
    finite = [decay for decay, each in found.items() if each["nats_per_token"] is not None]
    if not finite:
        callbacks.journal.note("event", counters.step, what="valid loss is not finite")
        return True
    best = min(finite, key=lambda decay: found[decay]["nats_per_token"])
    result = found[best]
    evaluate_s = sum(each["elapsed_s"] for each in found.values())
    cost = {"scored_tokens": result["tokens"], "evaluate_s": evaluate_s}
    # In place of those of the evaluation.
    so_far = {"tokens": counters.tokens, "elapsed_s": counters.elapsed_s}
    choice = choice_among(found, best)
    callbacks.journal.note("valid", counters.step, **{**result, **cost, **so_far, **choice})
    which = f"average with ema_decay {best}" if best else "the weights themselves"
    bits = f"{result['bits_per_byte']:.4f} bits per byte{f' ({which})' if choice else ''}"
    callbacks.bar.print(f"step {counters.step}: valid {bits}")
    if is_best(counters, measurement(result), result["nats_per_token"]):
        sync_journal(training, callbacks)
        with training.optimizer.averaged(best):
            save_captured(training, callbacks, "best", capture_weights)
    training.optimizer.report_validation(result["nats_per_token"])
    return True


def validate_candidates(training: Training, callbacks: Callbacks) -> dict[float, dict[str, Any]]:
    """The result of every candidate for `best`: the weights, or averages of them by decay."""
    found = {}
    for decay in training.optimizer.candidates():
        with (
            training.optimizer.averaged(decay),
            training.world.full_params(training.loss),
            training.counters.spending("validation"),
        ):
            found[decay] = callbacks.validate(training.model)
    return found


def choice_among(found: Mapping[float, Mapping[str, Any]], best: float) -> dict[str, Any]:
    """The fields of a `valid` entry that say which of several candidates was the best."""
    if len(found) == 1:
        return {}
    bits = {str(decay): result["bits_per_byte"] for decay, result in found.items()}
    return {"ema_decay": best, "bits_per_byte_by_ema_decay": bits}


def is_best(counters: Counters, validated_on: list[object], nats_per_token: float) -> bool:
    """Compare a validation loss with the best so far, and remember it if it is better."""
    if counters.validated_on not in ([], validated_on):
        # The best loss so far is of another text or was measured in another way.
        counters.best_nats = None
    counters.validated_on = validated_on
    if counters.best_nats is None or nats_per_token < counters.best_nats:
        counters.best_nats = nats_per_token
        return True
    return False


def save_last(training: Training, callbacks: Callbacks, *, whole: bool = True) -> None:
    """Write the `last` checkpoint; a run that reaches it by good steps has recovered."""
    counters = training.counters
    if not (counters.no_progress or counters.bad_steps):
        counters.rollbacks = 0
    sync_journal(training, callbacks)
    save_captured(training, callbacks, "last", capture if whole else capture_weights)
    training.saved_step, training.saved_whole = counters.step, whole


def save_captured(
    training: Training,
    callbacks: Callbacks,
    name: str,
    captured: Callable[[Training], Checkpoint],
) -> None:
    """Begin to write a checkpoint; what is counted is the time in which no step can be made."""
    with training.counters.spending("checkpoints"):
        callbacks.save(name, captured(training))


def finish_saving(training: Training, callbacks: Callbacks) -> None:
    """Wait until all checkpoints are written."""
    with training.counters.spending("checkpoints"):
        callbacks.finish_saving()


def sync_journal(training: Training, callbacks: Callbacks) -> None:
    """Write the journal to disk before the checkpoint that refers to its length."""
    callbacks.journal.fsync()
    training.counters.journal_bytes = callbacks.journal.size_bytes()
