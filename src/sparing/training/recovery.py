"""Recovery from bad steps: smaller micro-batches, skipped updates, and rollback."""

import math

from sparing.data.stream import Segment
from sparing.errors import UserError
from sparing.training.capture import restore_weights
from sparing.training.config import TrainConfig
from sparing.training.state import Callbacks, Training
from sparing.training.step import OutOfMemoryError, StepResult, train_step

MAX_ROLLBACKS = 5
"""A run that has rolled back this often before its next checkpoint will not recover."""


def step_within_memory(
    training: Training, config: TrainConfig, segment: Segment, callbacks: Callbacks
) -> StepResult:
    """Run `train_step`; if memory is too small, again with more and smaller micro-batches.

    The update is the same except for the dropout masks. Several processes would have to agree on
    the number, so they fail instead, as do models that need a fixed number of micro-batches.
    """
    while True:
        tried = micro_batches(training, config)
        try:
            return train_step(training, segment, tried)
        except OutOfMemoryError:
            rows = segment.inputs_BT.size(0)
            more = [n for n in range(tried + 1, rows + 1) if rows % n == 0]
            if training.world.size > 1 or training.model.fixed_micro_batches or not more:
                raise UserError(
                    "the device's memory is too small; raise train.micro_batches or lower "
                    "train.segment"
                ) from None
        # Outside the except block, as the exception holds on to the tensors of the failed step.
        training.counters.micro_batches = more[0]
        training.optimizer.zero_grad()
        training.hardware.empty_cache()
        what = f"memory is too small; using {more[0]} micro-batches (train.micro_batches)"
        report_event(callbacks, training.counters.step, what)


def micro_batches(training: Training, config: TrainConfig) -> int:
    """Micro-batches of this process: as configured, or more if memory was too small before."""
    configured = training.world.micro_batches(config.batch, config.micro_batches)
    return (
        configured if training.world.size > 1 else max(configured, training.counters.micro_batches)
    )


def check_gradients(training: Training, callbacks: Callbacks) -> bool:
    """Check the gradient norms of past updates; return whether the last step was good.

    The norms are read a step late, when they have long arrived, so that no step waits for them.
    """
    counters = training.counters
    while training.unchecked_norms:
        if math.isfinite(training.unchecked_norms.pop(0).item()):
            counters.bad_steps, counters.no_progress = 0, False
        else:
            counters.bad_steps += 1
            report_event(callbacks, counters.step, "gradients are not finite; replaced by zeros")
    return counters.bad_steps == 0


def report_skipped(training: Training, callbacks: Callbacks, result: StepResult) -> None:
    """Report a step without an update; unless the loss scale overflowed it counts as bad."""
    step = training.counters.step + 1
    if result.overflowed:
        what = "gradients overflowed; loss scale halved, step skipped"
        callbacks.journal.note("event", step, what=what)
        return
    training.counters.bad_steps += 1
    what = "gradients are" if math.isfinite(result.loss_nats) else "loss is"
    report_event(callbacks, step, f"{what} not finite{training.world.bad_ranks()}; step skipped")


def report_event(callbacks: Callbacks, step: int, what: str) -> None:
    """Write an event to the journal and above the progress bar."""
    callbacks.journal.note("event", step, what=what)
    callbacks.bar.print(f"step {step}: {what}")


def roll_back(training: Training, callbacks: Callbacks, batch: int) -> None:
    """Load the weights of the last checkpoint and continue with the text after the bad segments.

    If the last checkpoint has led to bad steps before, load the previous one.
    """
    counters = training.counters
    earlier = callbacks.load("previous") if counters.no_progress else None
    # A checkpoint of an earlier pass may hold the state of another optimizer.
    same_pass = earlier is not None and earlier.cursor["pass_step"] == counters.pass_step
    checkpoint = earlier if same_pass else callbacks.load("last")
    if checkpoint is None or counters.rollbacks >= MAX_ROLLBACKS:
        raise UserError(
            f"the loss is not finite at step {counters.step}; lower optim.lr or optim.clip"
        )
    restore_weights(training, checkpoint)
    training.state = training.fresh_state(batch)
    training.unchecked_norms.clear()
    counters.bad_steps, counters.no_progress = 0, True
    counters.rollbacks += 1
    what = f"rolled back to the weights of step {checkpoint.cursor['step']}"
    report_event(callbacks, counters.step, what)
