"""One training step: forward, loss and backward over micro-batches, clipping, update.

The training loop and the benchmarks call the same `train_step`.
"""

import math
from typing import NamedTuple

import torch

from sparing.data.stream import Segment
from sparing.errors import is_out_of_memory
from sparing.host_copy import AsyncHostCopy
from sparing.models.api import State, concat_lanes, select_lanes
from sparing.training.optim import clip_
from sparing.training.state import Training


class StepResult(NamedTuple):
    """What a step returns to the loop."""

    loss_nats: float
    """Summed loss of the segment, over all processes."""
    grad_norm: AsyncHostCopy
    """Norm of the gradients before clipping."""
    updated: bool
    """Whether the weights were updated."""
    overflowed: bool
    """Whether there was no update only because the loss scale was too large."""


class OutOfMemoryError(MemoryError):
    """The forward and backward passes did not fit into memory; no weight has changed yet."""


def train_step(training: Training, segment: Segment, micro_batches: int) -> StepResult:
    """Train on one segment and carry its state on.

    The loss is the only number the host waits for. With one process that wait ends before the
    backward pass does, so the next kernels are queued while the device is still busy.
    """
    try:
        loss_nats, grad_norm, state = compute_gradients(training, segment, micro_batches)
    except (RuntimeError, MemoryError) as problem:
        if not is_out_of_memory(problem):
            raise
        raise OutOfMemoryError(str(problem)) from None
    updated = update_weights(training, loss_nats, grad_norm)
    if math.isfinite(loss_nats):
        training.state = state
    overflowed = not updated and math.isfinite(loss_nats) and not training.scale.exhausted
    training.scale.after_step(finite=updated)
    return StepResult(loss_nats, grad_norm, updated, overflowed)


def compute_gradients(
    training: Training, segment: Segment, micro_batches: int
) -> tuple[float, AsyncHostCopy, State]:
    """Compute clipped gradients of the mean loss; return summed loss, gradient norm and state."""
    losses, states = [], []
    rows = segment.inputs_BT.size(0) // micro_batches
    for index in range(micro_batches):
        chosen = slice(index * rows, (index + 1) * rows)
        inputs_BT, targets_BT = segment.inputs_BT[chosen], segment.targets_BT[chosen]
        # An unsplit state is passed as it is: slices would make the model copy its memory.
        carried = training.state if micro_batches == 1 else select_lanes(training.state, chosen)
        last = index == micro_batches - 1
        with training.world.grad_sync(training.loss, last=last):
            with training.hardware.autocast():
                nats, state, penalty = training.loss(inputs_BT, targets_BT, carried)
            # Each micro-batch adds its share of the mean over the whole segment and all
            # processes, so the number of micro-batches does not change the gradients.
            loss = nats / segment.count + penalty / (micro_batches * training.world.size)
            losses.append(nats.detach())
            states.append(state)
            if last:
                # Copied before the backward pass, so that the host need not wait for that.
                copied = AsyncHostCopy(torch.stack(losses).sum().float())
            (loss * training.scale.value).backward()
    norm = clip_(training.model.parameters(), training.clip, scale=training.scale.value)
    total, grad_norm = training.world.sync_step(copied, norm)
    return total, grad_norm, states[0] if micro_batches == 1 else concat_lanes(states)


def update_weights(training: Training, loss_nats: float, grad_norm: AsyncHostCopy) -> bool:
    """Update the weights unless the loss or the scaled gradients are not finite.

    Returns whether the weights were updated. The gradients are dropped in either case.
    """
    # Only with a loss scale is the norm needed at once. Otherwise gradients that are not finite
    # have been set to zero, and `check_gradients` reports them later.
    finite = math.isfinite(loss_nats)
    if finite and training.scale.active:
        finite = math.isfinite(grad_norm.item())
    if finite:
        training.optimizer.step()
        training.model.after_step()
    training.optimizer.zero_grad()
    return finite
