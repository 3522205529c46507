"""The one training loop, in plain sight."""

import math

import numpy as np
import torch

from sparing import units
from sparing.data.stream import Segment, prefetch
from sparing.device import is_out_of_memory
from sparing.errors import UserError
from sparing.evaluate.window import on_device
from sparing.host_copy import AsyncHostCopy
from sparing.models.api import State, concat_lanes, select_lanes
from sparing.train.capture import capture, capture_optimizer, capture_weights
from sparing.train.config import TrainConfig
from sparing.train.journal import measured
from sparing.train.optim import clip_
from sparing.train.progress import Clock
from sparing.train.recovery import report, roll_back, settle, skipped
from sparing.train.schedule import ScheduleConfig, factor
from sparing.train.state import Callbacks, Progress, Training
from sparing.train.stopping import stopping

RESTARTS = 0x5EED
"""Sets these random numbers apart from others of the same seed."""


def fit(run: Training, config: TrainConfig, schedule: ScheduleConfig, callbacks: Callbacks) -> int:
    """Train until the budget is spent (returns 0) or a signal asks to stop (returns its number)."""
    p, clock = run.progress, Clock(run.progress.elapsed_s + run.head_start_s)
    run.pieces = run.world.micro_batches(config.batch, config.micro_batches)
    if run.world.size == 1:
        run.pieces = max(run.pieces, p.pieces)
    segments = prefetch(run.stream.segments(), run.hardware.device)
    run.model.train()
    with stopping(launched=run.launched) as stop:
        run.world.watch(stop, clock)
        while (
            not stop.asked and not run.model.converged and (share := spent(run, config, clock)) < 1
        ):
            segment = next(segments)
            if segment.fresh:
                run.state = run.fresh_state(segment.inputs_BT.size(0))
            if config.state_reset:
                run.state = reset_lanes(run, config)
            by_length = segment.length / config.segment if config.lr_by_length else 1.0
            run.optimizer.scale_lr(by_length * rate(p, schedule, share))
            run.model.before_step(p.step, share)
            nats, norm, state = backward_within_memory(run, segment, callbacks)
            settle(run, callbacks)
            sound = update(run, nats, norm)
            if math.isfinite(nats):
                run.state = state
            p.bad += 0 if sound else skipped(run, callbacks, nats)
            run.scale.after_step(finite=sound)
            advance(p, segment, nats if sound else None, clock)
            if p.bad >= config.bad_steps:
                roll_back(run, callbacks, segment.inputs_BT.size(0))
            watch(run, callbacks, spent(run, config, clock))
            if p.step % config.log_every == 0:
                log(run, callbacks, norm.number())
            if evaluation_due(p, segment, config):
                judge(run, callbacks)
            # Weights that yield no finite loss must not replace those that did.
            if p.step % config.checkpoint_every == 0 and settle(run, callbacks):
                save(run, callbacks)
        p.elapsed_s = clock.elapsed_s()
        finish(run, config, callbacks, early=stop.asked)
        run.finished_s = clock.elapsed_s()
    return stop.cause


def finish(run: Training, config: TrainConfig, callbacks: Callbacks, *, early: bool) -> None:
    """Write down what was trained, then judge it: that takes time of its own, and may fail."""
    step = run.progress.step
    if not settle(run, callbacks) or step % config.checkpoint_every or step == 0:
        save(run, callbacks)
    if not early and judge(run, callbacks):
        note_journal(run, callbacks)
        callbacks.amend("last", capture_optimizer(run))


def reset_lanes(run: Training, config: TrainConfig) -> State:
    """The carried state with some lanes begun anew, as models seldom see it in long lanes.

    Which ones follows from seed and step alone, for all lanes of all processes.
    """
    random = np.random.default_rng((RESTARTS, config.seed, run.progress.step))
    chosen = random.random(config.batch) < config.state_reset
    # Asked of all lanes everywhere: what a state holds must not differ between processes.
    if not chosen.any():
        return run.state
    own = run.world.lanes(config.batch)
    return run.model.reset_lanes(
        run.state, on_device(chosen[own.start : own.stop], run.hardware.device)
    )


def spent(run: Training, config: TrainConfig, clock: Clock) -> float:
    """The share of the budget used up, by whichever of steps, epochs and minutes ends first."""
    p, shares = run.progress, [0.0]
    if config.steps:
        shares.append(p.step / config.steps)
    if config.epochs:
        shares.append(p.tokens / (config.epochs * run.stream.tokens_per_epoch))
    if config.minutes:
        shares.append(clock.shared_s() / (60 * config.minutes))
    return max(shares)


def rate(p: Progress, schedule: ScheduleConfig, share: float) -> float:
    """The learning rate's factor now, counted from the start of the present pass."""
    if p.pass_share < 0:
        p.pass_share = share
    done = (share - p.pass_share) / max(1e-9, 1 - p.pass_share)
    return factor(schedule, p.step - p.pass_step + 1, done)


def backward_within_memory(
    run: Training, segment: Segment, callbacks: Callbacks
) -> tuple[float, AsyncHostCopy, State]:
    """`backward`; where the device's memory is too small for it, again in smaller pieces.

    The update is the same but for what dropout draws. Several processes would have to agree on it,
    so they fail instead; and so do models that keep lanes of every piece apart.
    """
    while True:
        try:
            return backward(run, segment, run.pieces)
        except (RuntimeError, MemoryError) as problem:
            if not is_out_of_memory(problem):
                raise
            rows = segment.inputs_BT.size(0)
            smaller = [n for n in range(run.pieces + 1, rows + 1) if rows % n == 0]
            if run.world.size > 1 or run.model.fixed_micro_batches or not smaller:
                what = "the device's memory is too small; raise train.micro_batches"
                raise UserError(f"{what} or lower train.segment") from None
        run.pieces = run.progress.pieces = smaller[0]
        run.optimizer.zero_grad()
        run.hardware.forget()
        what = f"memory is too small; the batch goes in {run.pieces} pieces (train.micro_batches)"
        report(callbacks, run.progress.step, what)


def backward(run: Training, segment: Segment, pieces: int) -> tuple[float, AsyncHostCopy, State]:
    """Gradients of one segment's mean loss: its summed loss, the gradient norm, the state after.

    The step's only wait for the device, and, for one process, it ends with the loss: what is told
    to the device next it hears while it is busy with the gradients, and so never runs out of work.
    """
    losses, states = [], []
    rows = segment.inputs_BT.size(0) // pieces
    for piece in range(pieces):
        chosen = slice(piece * rows, (piece + 1) * rows)
        inputs_BT, targets_BT = segment.inputs_BT[chosen], segment.targets_BT[chosen]
        # Whole, it goes in as it is: a memory that knows itself again is not copied.
        carried = run.state if pieces == 1 else select_lanes(run.state, chosen)
        with run.world.grad_sync(run.loss, last=piece == pieces - 1):
            with run.hardware.autocast():
                nats, state, penalty = run.loss(inputs_BT, targets_BT, carried)
            # Each piece adds its share of the whole segment's mean, over all processes, so that
            # cutting changes no gradient.
            loss = nats / segment.count + penalty / (pieces * run.world.size)
            losses.append(nats.detach())
            states.append(state)
            if piece == pieces - 1:
                asked = AsyncHostCopy(torch.stack(losses).sum().float())
            (loss * run.scale.value).backward()
    total, norm = run.world.sync_step(
        asked, clip_(run.model.parameters(), run.clip, scale=run.scale.value)
    )
    return total, norm, states[0] if pieces == 1 else concat_lanes(states)


def update(run: Training, nats: float, norm: AsyncHostCopy) -> bool:
    """Move the weights, unless the loss or scaled gradients are not finite; whether they moved."""
    # Only a loss scale must know at once. Other gradients that are not finite have become zeros,
    # and `settle` hears of them in time.
    sound = math.isfinite(nats) and not (run.scale.active and not math.isfinite(norm.number()))
    if sound:
        run.optimizer.step()
        run.model.after_step()
        run.norm = norm
    run.optimizer.zero_grad()
    return sound


def advance(p: Progress, segment: Segment, nats: float | None, clock: Clock) -> None:
    """Note that a segment is behind us."""
    p.step, p.tokens, p.cursor = p.step + 1, p.tokens + segment.count, segment.cursor
    p.elapsed_s = clock.elapsed_s()
    if nats is not None:
        p.pending_nats, p.pending_tokens = p.pending_nats + nats, p.pending_tokens + segment.count


def watch(run: Training, callbacks: Callbacks, share: float) -> None:
    """Keep the bar alive."""
    p = run.progress
    mean = p.pending_nats / max(1, p.pending_tokens)
    bits = units.bits_per_byte(mean, 1) / run.bytes_per_token
    speed = p.tokens * run.bytes_per_token / max(p.elapsed_s, 1e-9)
    words = f"step {p.step}  loss {mean:.3f}  {bits:.3f} bits/byte  {units.human_bytes(speed)}/s"
    callbacks.bar.update(share, words)


def log(run: Training, callbacks: Callbacks, norm: float) -> None:
    """One `train` entry: the mean loss since the last one, and where the run stands."""
    settle(run, callbacks)
    p = run.progress
    mean = p.pending_nats / p.pending_tokens if p.pending_tokens else None
    bits = None if mean is None else units.bits_per_byte(mean, 1) / run.bytes_per_token
    speed = p.pending_tokens / max(p.elapsed_s - p.logged_s, 1e-9)
    with run.world.full_params(run.loss):
        telemetry = run.model.telemetry()
    callbacks.journal.note(
        "train",
        p.step,
        tokens=p.tokens,
        epoch=p.tokens / run.stream.tokens_per_epoch,
        nats_per_token=mean,
        bits_per_byte=bits,
        lr=run.optimizer.lr,
        grad_norm=norm if math.isfinite(norm) else None,
        loss_scale=run.scale.value,
        **telemetry,
        elapsed_s=p.elapsed_s,
        tokens_per_s=speed,
        peak_bytes=run.hardware.peak_bytes(),
    )
    p.pending_nats, p.pending_tokens, p.logged_s = 0.0, 0, p.elapsed_s


def evaluation_due(p: Progress, segment: Segment, config: TrainConfig) -> bool:
    """Every `evaluate_every` steps if set, else whenever an epoch ends."""
    if config.evaluate_every:
        return p.step % config.evaluate_every == 0
    return segment.cursor.position == 0


def judge(run: Training, callbacks: Callbacks) -> bool:
    """One `valid` entry; a best result is kept as its own checkpoint. False: judged before."""
    p = run.progress
    if p.judged_step == p.step:
        return False
    p.judged_step = p.step
    settle(run, callbacks)
    with run.optimizer.averaged():
        with run.world.full_params(run.loss):
            result = callbacks.judge(run.model)
        if result["nats_per_token"] is None:
            callbacks.journal.note("event", p.step, what="valid loss is not finite")
            return True
        spent_on = {"scored_tokens": result["tokens"], "evaluate_s": result["elapsed_s"]}
        place = {"tokens": p.tokens, "elapsed_s": p.elapsed_s}
        callbacks.journal.note("valid", p.step, **{**result, **spent_on, **place})
        callbacks.bar.say(f"step {p.step}: valid {result['bits_per_byte']:.4f} bits per byte")
        judged_as = measured(result)
        if p.judged_as not in ([], judged_as):
            # The best so far is of another text, or was read in another way.
            p.best_nats = None
        p.judged_as = judged_as
        if p.best_nats is None or result["nats_per_token"] < p.best_nats:
            p.best_nats, p.journal_bytes = result["nats_per_token"], callbacks.journal.size_bytes()
            callbacks.save("best", capture_weights(run))
    run.optimizer.judged(result["nats_per_token"])
    return True


def save(run: Training, callbacks: Callbacks) -> None:
    """Write the `last` checkpoint; a run that got here by sound steps has recovered."""
    p = run.progress
    p.rollbacks = p.rollbacks if p.fruitless or p.bad else 0
    note_journal(run, callbacks)
    callbacks.save("last", capture(run))


def note_journal(run: Training, callbacks: Callbacks) -> None:
    """The journal's lines reach the disk before the checkpoint that counts on them."""
    callbacks.journal.sync()
    run.progress.journal_bytes = callbacks.journal.size_bytes()
