"""The one training loop, in plain sight."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from sparing import units
from sparing.data.prefetch import prefetch
from sparing.data.stream import Cursor, Segment, Stream
from sparing.device import Hardware
from sparing.errors import UserError
from sparing.models.api import LanguageModel, State, joined, lanes
from sparing.train.checkpoint import Checkpoint
from sparing.train.clock import Clock
from sparing.train.config import TrainConfig
from sparing.train.journal import Journal
from sparing.train.optim import OptimizerSet, clip_
from sparing.train.progress import Bar
from sparing.train.scale import LossScale
from sparing.train.schedule import ScheduleConfig, factor
from sparing.train.stopping import stopping

ROLLBACKS = 5
"""A run that has gone back this often is not going to recover."""


@dataclass(slots=True)
class Progress:
    """Everything about a run's position that is a plain number."""

    step: int = 0
    tokens: int = 0
    elapsed_s: float = 0.0
    best_nats: float | None = None
    """Best valid loss per token so far."""
    pending_nats: float = 0.0
    """Loss of the `pending_tokens` seen since the last entry of the journal."""
    pending_tokens: int = 0
    logged_s: float = 0.0
    judged_step: int = -1
    rollbacks: int = 0
    pass_step: int = 0
    """Where the present pass began: its schedule counts from here."""
    pass_share: float = 0.0
    cursor: Cursor = field(default_factory=Cursor)


@dataclass(slots=True)
class Training:
    """What changes while a run goes on."""

    model: LanguageModel
    optimizer: OptimizerSet
    stream: Stream
    hardware: Hardware
    scale: LossScale
    state: State
    clip: float = 0.0
    bytes_per_token: float = 1.0
    progress: Progress = field(default_factory=Progress)


@dataclass(frozen=True, slots=True)
class Desk:
    """Where a run writes, and who judges it."""

    journal: Journal
    bar: Bar
    save: Callable[[str, Checkpoint], None]
    load: Callable[[str], Checkpoint | None]
    judge: Callable[[LanguageModel], dict[str, Any]]
    """Loss on the valid split; holds at least `nats_per_token` and `bits_per_byte`."""


def fit(run: Training, config: TrainConfig, schedule: ScheduleConfig, desk: Desk) -> int:
    """Train until the budget is spent (returns 0) or a signal asks to stop (returns its number)."""
    p, clock, bad = run.progress, Clock(run.progress.elapsed_s), 0
    segments = prefetch(run.stream.segments(), run.hardware.device)
    run.model.train()
    with stopping() as stop:
        while not stop.asked and (share := spent(run, config, clock)) < 1:
            segment = next(segments)
            if segment.fresh:
                run.state = run.model.initial_state(segment.inputs_BT.size(0))
            run.optimizer.scale_lr(rate(p, schedule, share))
            nats, norm, state = backward(run, segment, config.batch_split)
            sound = math.isfinite(nats) and math.isfinite(norm)
            if sound:
                run.optimizer.step()
                run.model.after_step()
            if math.isfinite(nats):
                run.state = state
            run.optimizer.zero_grad()
            bad = 0 if sound else bad + skipped(run, desk, nats)
            run.scale.after_step(finite=sound)
            advance(p, segment, nats if sound else None, clock)
            if bad >= config.bad_steps:
                roll_back(run, desk)
                bad = 0
            watch(run, desk, share)
            if p.step % config.log_every == 0:
                log(run, desk, norm)
            if evaluation_due(p, segment, config):
                judge(run, desk)
            if p.step % config.checkpoint_every == 0:
                save(run, desk)
    if not stop.asked:
        judge(run, desk)
    p.elapsed_s = clock.elapsed_s()
    save(run, desk)
    return stop.signal


def spent(run: Training, config: TrainConfig, clock: Clock) -> float:
    """The share of the budget used up, by whichever of steps, epochs and minutes ends first."""
    p, shares = run.progress, [0.0]
    if config.steps:
        shares.append(p.step / config.steps)
    if config.epochs:
        shares.append(p.tokens / (config.epochs * run.stream.tokens_per_epoch))
    if config.minutes:
        shares.append(clock.elapsed_s() / (60 * config.minutes))
    return max(shares)


def rate(p: Progress, schedule: ScheduleConfig, share: float) -> float:
    """The learning rate's factor now, counted from the start of the present pass."""
    if p.pass_share < 0:
        p.pass_share = share
    done = (share - p.pass_share) / max(1e-9, 1 - p.pass_share)
    return factor(schedule, p.step - p.pass_step + 1, done)


def backward(run: Training, segment: Segment, pieces: int) -> tuple[float, float, State]:
    """Gradients of one segment's mean loss: its summed loss, the gradient norm, the state after."""
    losses, states = [], []
    rows = segment.inputs_BT.size(0) // pieces
    for piece in range(pieces):
        chosen = slice(piece * rows, (piece + 1) * rows)
        with run.hardware.autocast():
            out = run.model(segment.inputs_BT[chosen], lanes(run.state, chosen))
            nats = run.model.head.nats(out.hidden_BTD, segment.targets_BT[chosen]).sum()
        # Each piece adds its share of the whole segment's mean, so cutting changes no gradient.
        loss = nats / segment.count + out.penalty / pieces
        (loss * run.scale.value).backward()
        losses.append(nats.detach())
        states.append(out.state)
    norm = clip_(run.model.parameters(), run.clip, scale=run.scale.value)
    # The step's only wait for the device: both numbers decide whether the update is taken.
    total, size = torch.stack([torch.stack(losses).sum().float(), norm.float()]).tolist()
    return total, size, states[0] if pieces == 1 else joined(states)


def advance(p: Progress, segment: Segment, nats: float | None, clock: Clock) -> None:
    """Note that a segment is behind us."""
    p.step, p.tokens, p.cursor = p.step + 1, p.tokens + segment.count, segment.cursor
    p.elapsed_s = clock.elapsed_s()
    if nats is not None:
        p.pending_nats, p.pending_tokens = p.pending_nats + nats, p.pending_tokens + segment.count


def skipped(run: Training, desk: Desk, nats: float) -> int:
    """Report a step without an update; 1 if it counts as bad, 0 for an overflow of the scale."""
    step = run.progress.step + 1
    if math.isfinite(nats) and not run.scale.exhausted:
        return 0
    what = "loss is not finite" if not math.isfinite(nats) else "gradients are not finite"
    desk.journal.note("event", step, what=f"{what}; step skipped")
    desk.bar.say(f"step {step}: {what}; step skipped")
    return 1


def roll_back(run: Training, desk: Desk) -> None:
    """Go back to the last checkpoint's weights, and on with the text after the bad segments."""
    p, checkpoint = run.progress, desk.load("last")
    if checkpoint is None or p.rollbacks >= ROLLBACKS:
        raise UserError(f"the loss is not finite at step {p.step}; lower optim.lr or optim.clip")
    restore_weights(run, checkpoint)
    run.state = run.model.initial_state(next(iter(run.state.values())).size(0))
    p.rollbacks += 1
    what = f"went back to the weights of step {checkpoint.cursor['step']}"
    desk.journal.note("event", p.step, what=what)
    desk.bar.say(f"step {p.step}: {what}")


def watch(run: Training, desk: Desk, share: float) -> None:
    """Keep the bar alive."""
    p = run.progress
    mean = p.pending_nats / max(1, p.pending_tokens)
    bits = units.bits_per_byte(mean, 1) / run.bytes_per_token
    speed = p.tokens * run.bytes_per_token / max(p.elapsed_s, 1e-9)
    words = f"step {p.step}  loss {mean:.3f}  {bits:.3f} bits/byte  {units.human_bytes(speed)}/s"
    desk.bar.update(share, words)


def log(run: Training, desk: Desk, norm: float) -> None:
    """One `train` entry: the mean loss since the last one, and where the run stands."""
    p = run.progress
    mean = p.pending_nats / p.pending_tokens if p.pending_tokens else None
    bits = None if mean is None else units.bits_per_byte(mean, 1) / run.bytes_per_token
    speed = p.pending_tokens / max(p.elapsed_s - p.logged_s, 1e-9)
    desk.journal.note(
        "train",
        p.step,
        tokens=p.tokens,
        epoch=p.tokens / run.stream.tokens_per_epoch,
        nats_per_token=mean,
        bits_per_byte=bits,
        lr=run.optimizer.lr,
        grad_norm=norm,
        loss_scale=run.scale.value,
        **run.model.telemetry(),
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


def judge(run: Training, desk: Desk) -> None:
    """One `valid` entry; a best result is kept as its own checkpoint."""
    p = run.progress
    if p.judged_step == p.step:
        return
    p.judged_step = p.step
    result = desk.judge(run.model)
    measured = {"scored_tokens": result["tokens"], "evaluate_s": result["elapsed_s"]}
    place = {"tokens": p.tokens, "elapsed_s": p.elapsed_s}
    desk.journal.note("valid", p.step, **{**result, **measured, **place})
    desk.bar.say(f"step {p.step}: valid {result['bits_per_byte']:.4f} bits per byte")
    if p.best_nats is None or result["nats_per_token"] < p.best_nats:
        p.best_nats = result["nats_per_token"]
        weights = {"model": model_tensors(run.model)}
        desk.save("best", Checkpoint(weights, capture(run).cursor))


def save(run: Training, desk: Desk) -> None:
    """Write the `last` checkpoint; the journal's lines before it reach the disk first."""
    desk.journal.sync()
    desk.save("last", capture(run))


def capture(run: Training) -> Checkpoint:
    """Everything the next process needs to go on with the same numbers."""
    state = {f"state.{name}": tensor for name, tensor in run.state.items()}
    state["rng.cpu"] = torch.get_rng_state()
    if run.hardware.device.type == "cuda":
        state["rng.cuda"] = torch.cuda.get_rng_state(run.hardware.device)
    cursor = asdict(run.progress) | {
        "cursor": list(run.progress.cursor),
        "loss_scale": [run.scale.value, run.scale.good_steps],
    }
    tensors = {"model": model_tensors(run.model), "optimizer": run.optimizer.tensors()}
    return Checkpoint({**tensors, "state": state}, cursor)


def resumable(checkpoint: Checkpoint) -> bool:
    """Whether a run can go on from it bit for bit; `best` holds weights alone."""
    return {"optimizer", "state"} <= checkpoint.tensors.keys()


def restore(run: Training, checkpoint: Checkpoint) -> None:
    """The inverse of `capture`."""
    restore_weights(run, checkpoint)
    saved, cursor = checkpoint.tensors["state"], dict(checkpoint.cursor)
    run.scale.value, run.scale.good_steps = cursor.pop("loss_scale")
    cursor["cursor"] = Cursor(*cursor["cursor"])
    run.progress = Progress(**cursor)
    device = run.hardware.device
    run.state = {
        name.removeprefix("state."): tensor.to(device)
        for name, tensor in saved.items()
        if name.startswith("state.")
    }
    torch.set_rng_state(saved["rng.cpu"])
    if "rng.cuda" in saved and device.type == "cuda":
        torch.cuda.set_rng_state(saved["rng.cuda"], device)


def second_pass(run: Training, checkpoint: Checkpoint) -> None:
    """Go on with the weights alone: fresh moments, empty state, warm-up anew, text from its start.

    It is what SHA-RNN's second command does to halve the learning rate.
    """
    load_model_tensors(run.model, checkpoint.tensors["model"])
    cursor = dict(checkpoint.cursor)
    del cursor["loss_scale"]
    epoch = int(cursor["cursor"][0]) + 1
    cursor |= {"cursor": Cursor(epoch, 0, 0), "pass_step": cursor["step"], "pass_share": -1.0}
    run.progress = Progress(**cursor)


def restore_weights(run: Training, checkpoint: Checkpoint) -> None:
    """Model and optimizer only."""
    load_model_tensors(run.model, checkpoint.tensors["model"])
    run.optimizer.load_tensors(dict(checkpoint.tensors["optimizer"]))


def model_tensors(model: LanguageModel) -> dict[str, Tensor]:
    """Parameters and buffers by name, each shared tensor once."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


@torch.no_grad()
def load_model_tensors(model: LanguageModel, tensors: Mapping[str, Tensor]) -> None:
    """The inverse of `model_tensors`; every tensor must be there and fit."""
    own = model_tensors(model)
    if own.keys() != tensors.keys():
        odd = sorted(own.keys() ^ tensors.keys())[0]
        raise UserError(f"the checkpoint does not fit the model: {odd} is only in one of them")
    for name, tensor in own.items():
        if tensor.shape != tensors[name].shape:
            shapes = f"{tuple(tensors[name].shape)} there, {tuple(tensor.shape)} here"
            raise UserError(f"the checkpoint does not fit the model: {name} is {shapes}")
        tensor.copy_(tensors[name])
