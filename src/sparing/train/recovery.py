"""Steps that must not count: what is skipped, reported, and gone back from."""

import math

from sparing.errors import UserError
from sparing.train.capture import restore_weights
from sparing.train.state import Callbacks, Training

ROLLBACKS = 5
"""A run that has gone back this often before its next checkpoint is not going to recover."""


def settle(run: Training, callbacks: Callbacks) -> bool:
    """Hear of the last update's gradients; whether the run has no bad step behind it by now."""
    p, norm = run.progress, run.norm
    if norm is not None:
        run.norm = None
        if math.isfinite(norm.number()):
            p.bad, p.fruitless = 0, False
        else:
            p.bad += 1
            report(callbacks, p.step, "gradients are not finite; taken for zero")
    return p.bad == 0


def skipped(run: Training, callbacks: Callbacks, nats: float) -> int:
    """Report a step without an update; 1 if it counts as bad, 0 for an overflow of the scale."""
    step = run.progress.step + 1
    if math.isfinite(nats) and not run.scale.exhausted:
        callbacks.journal.note(
            "event", step, what="gradients overflowed; scale halved, step skipped"
        )
        return 0
    what = "loss is not finite" if not math.isfinite(nats) else "gradients are not finite"
    report(callbacks, step, f"{what}{run.world.bad_ranks()}; step skipped")
    return 1


def report(callbacks: Callbacks, step: int, what: str) -> None:
    """In the journal and beside the bar."""
    callbacks.journal.note("event", step, what=what)
    callbacks.bar.say(f"step {step}: {what}")


def roll_back(run: Training, callbacks: Callbacks, batch: int) -> None:
    """Go back to the last checkpoint's weights, and on with the text after the bad segments.

    Where those did not help before, to the weights of the checkpoint before it.
    """
    p = run.progress
    earlier = callbacks.load("previous") if p.fruitless else None
    # One of an earlier pass may hold the moments of another optimizer.
    of_this_pass = earlier is not None and earlier.cursor["pass_step"] == p.pass_step
    checkpoint = earlier if of_this_pass else callbacks.load("last")
    if checkpoint is None or p.rollbacks >= ROLLBACKS:
        raise UserError(f"the loss is not finite at step {p.step}; lower optim.lr or optim.clip")
    restore_weights(run, checkpoint)
    run.state = run.fresh_state(batch)
    run.norm, p.bad, p.rollbacks, p.fruitless = None, 0, p.rollbacks + 1, True
    what = f"went back to the weights of step {checkpoint.cursor['step']}"
    report(callbacks, p.step, what)
