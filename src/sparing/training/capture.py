"""Conversion of a training to a checkpoint and back, bit for bit."""

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any, cast

import torch
from torch import Tensor

from sparing import __version__
from sparing.data.stream import Cursor
from sparing.documents import conform, damage_named
from sparing.errors import UserError
from sparing.models.api import LanguageModel
from sparing.training.checkpoint import Checkpoint, Position
from sparing.training.distributed.dtensor import distribute_like
from sparing.training.distributed.world import World
from sparing.training.state import Counters, Training


def capture(training: Training) -> Checkpoint:
    """Everything another process needs to continue with bit-equal numbers."""
    world = training.world
    state = {f"state.{name}": each for name, each in world.gather_state(training.state).items()}
    for kind, local in rng_states(training).items():
        for rank, tensor in enumerate(world.gather(local)):
            state[rng_name(kind, rank)] = tensor
    model = world.full_tensors(model_tensors(training.model))
    optimizer = world.full_tensors(training.optimizer.tensors())
    return Checkpoint({"model": model, "optimizer": optimizer, "state": state}, position(training))


def capture_optimizer(training: Training) -> Checkpoint:
    """The part that validation can change: an averaging optimizer keeps validation losses."""
    optimizer = training.world.full_tensors(training.optimizer.tensors())
    return Checkpoint({"optimizer": optimizer}, position(training))


def capture_weights(training: Training) -> Checkpoint:
    """The weights alone, with the counters at which they were reached."""
    model = training.world.full_tensors(model_tensors(training.model))
    return Checkpoint({"model": model}, position(training))


def position(training: Training) -> dict[str, Any]:
    """Counters, the epoch's order and loss scale as JSON, the content of `cursor.json`."""
    scale, cursor = training.scale, training.counters.cursor
    return asdict(training.counters) | {
        "cursor": list(cursor),
        "order": training.stream.config.order(cursor.epoch),
        "loss_scale": [scale.value, scale.good_steps] if scale.active else None,
    }


def rng_states(training: Training) -> dict[str, Tensor]:
    """The states of this process's random generators."""
    found = {"rng.cpu": torch.get_rng_state()}
    if training.hardware.device.type == "cuda":
        found["rng.cuda"] = torch.cuda.get_rng_state(training.hardware.device)
    return found


def rng_name(kind: str, rank: int) -> str:
    """The name of a rank's random generator in a checkpoint."""
    return f"{kind}.{rank}" if rank else kind


def broadcast_checkpoint(world: World, checkpoint: Checkpoint | None) -> Checkpoint | None:
    """Send the checkpoint that rank 0 has read to every process."""
    cursor = world.broadcast_object(None if checkpoint is None else dict(checkpoint.cursor))
    if cursor is None:
        return None
    held = checkpoint.tensors if checkpoint is not None else {}
    version = world.broadcast_object(None if checkpoint is None else checkpoint.version)
    stems = world.broadcast_object(list(held))
    tensors = {stem: world.broadcast_tensors(held.get(stem)) for stem in stems}
    return Checkpoint(tensors, cursor, version)


def is_resumable(checkpoint: Checkpoint) -> bool:
    """Whether a run can continue from it bit for bit; `best` holds the weights alone."""
    return {"optimizer", "state"} <= checkpoint.tensors.keys()


def restore(training: Training, checkpoint: Checkpoint) -> None:
    """The inverse of `capture`."""
    saved, scale = checkpoint.tensors["state"], checkpoint.cursor.get("loss_scale")
    training.counters = _counters(checkpoint)
    _check_order(training, checkpoint.cursor.get("order"))
    restore_weights(training, checkpoint)
    if scale is not None and training.scale.active:
        training.scale.value, training.scale.good_steps = scale
    carried = {
        name.removeprefix("state."): tensor
        for name, tensor in saved.items()
        if name.startswith("state.")
    }
    device = training.hardware.device
    local = training.world.scatter_state(carried)
    # Copied, as in a file tensors begin anywhere: matrix products may depend on that in their last
    # bits.
    training.state = {name: tensor.to(device, copy=True) for name, tensor in local.items()}
    _restore_rng(training, saved)


def _check_order(training: Training, order: Mapping[str, Any] | None) -> None:
    """Refuse another order for the rest of an epoch: some of the text would be read twice."""
    cursor = training.counters.cursor
    now = training.stream.config.order(cursor.epoch)
    # An older version did not write the order.
    then = now if order is None or not cursor.position else order
    for name in {**then, **now}:
        was, becomes = (str(each.get(name)).lower() for each in (then, now))
        if was != becomes:
            raise UserError(
                f"train.{name} cannot become {becomes} in the middle of an epoch, which is read in "
                f"an order that depends on it; leave it at {was}, or start a second pass from "
                "the best checkpoint"
            )


def _restore_rng(training: Training, saved: Mapping[str, Tensor]) -> None:
    """Restore this rank's generators; a rank that was not saved starts a new sequence."""
    _check_rng(saved)
    cpu, cuda = (rng_name(kind, training.world.rank) for kind in ("rng.cpu", "rng.cuda"))
    if cpu not in saved:
        torch.manual_seed((torch.initial_seed() + training.counters.step) % (1 << 63))
        return
    torch.set_rng_state(saved[cpu])
    if cuda in saved and training.hardware.device.type == "cuda":
        torch.cuda.set_rng_state(saved[cuda], training.hardware.device)


def _check_rng(saved: Mapping[str, Tensor]) -> None:
    """Rank 0 always saves its generator; without it a resumed run would differ unnoticed."""
    own = torch.get_rng_state()
    given = [tensor for name, tensor in saved.items() if name.startswith("rng.cpu")]
    try:
        sound = "rng.cpu" in saved and all(t.shape == own.shape for t in given)
        for tensor in given if sound else ():
            torch.Generator().set_state(tensor)
    except (RuntimeError, TypeError):
        sound = False
    if not sound:
        raise UserError(
            "the checkpoint has no usable state of the random generator (rng.cpu); resume from "
            "another checkpoint"
        )


def restore_bare(training: Training, checkpoint: Checkpoint) -> None:
    """Restore weights and counters, which is enough where no step is left to be made."""
    load_model_tensors(training.model, checkpoint.tensors["model"])
    training.counters = _counters(checkpoint)


def start_second_pass(training: Training, checkpoint: Checkpoint) -> None:
    """Keep only the weights: new optimizer state, empty memory, new warm-up, start of the text.

    This is what the second command of SHA-RNN does to halve the learning rate.
    """
    restore_bare(training, checkpoint)
    before = training.counters
    training.counters = replace(
        before,
        cursor=Cursor(before.cursor.epoch + 1, 0, 0),
        pass_step=before.step,
        pass_share=None,
        # A lower rate is what the error message recommends after rollbacks: they are forgotten.
        bad_steps=0,
        rollbacks=0,
        no_progress=False,
    )


def _counters(checkpoint: Checkpoint) -> Counters:
    """The counters in a checkpoint; fields that an older version did not write are at their start.

    Raises a UserError for fields of a newer version: what they mean would be lost.
    """
    known = {field.name for field in fields(Counters)}
    others = Position.__annotations__.keys() - known
    stored = {name: value for name, value in checkpoint.cursor.items() if name not in others}
    if unknown := sorted(stored.keys() - known):
        raise UserError(
            f"the checkpoint was written by version {checkpoint.version or 'unknown'} of sparing: "
            f"{unknown[0]!r} in its cursor.json is not known to this one ({__version__}); update it"
        )
    with damage_named("the checkpoint's cursor.json"):
        found = conform({**stored, "cursor": Cursor(*stored.get("cursor", ()))}, Counters)
    return cast("Counters", found)


def restore_weights(training: Training, checkpoint: Checkpoint) -> None:
    """Restore model and optimizer only."""
    load_model_tensors(training.model, checkpoint.tensors["model"])
    training.optimizer.load_tensors(dict(checkpoint.tensors["optimizer"]))


def model_tensors(model: LanguageModel) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name, each shared tensor once."""
    tables = {
        f"{prefix}{'.' if prefix else ''}{name}"
        for prefix, module in model.named_modules()
        for name in module._non_persistent_buffers_set
    }
    buffers = {name: tensor for name, tensor in model.named_buffers() if name not in tables}
    return {**dict(model.named_parameters()), **buffers}


@torch.no_grad()
def load_model_tensors(model: LanguageModel, tensors: Mapping[str, Tensor]) -> None:
    """The inverse of `model_tensors`; names, shapes and kinds of numbers must match."""
    own = model_tensors(model)
    if own.keys() != tensors.keys():
        odd = sorted(own.keys() ^ tensors.keys())[0]
        raise UserError(f"the checkpoint does not fit the model: {odd} is in only one of them")
    for name, tensor in own.items():
        _check_weight(name, tensors[name], tensor)
    for name, tensor in own.items():
        tensor.copy_(distribute_like(tensors[name], tensor))


def _check_weight(name: str, given: Tensor, own: Tensor) -> None:
    """Raise a UserError unless a stored tensor can be a weight of the model."""
    there, here = (f"{str(t.dtype).removeprefix('torch.')} {tuple(t.shape)}" for t in (given, own))
    floats = given.is_floating_point() and own.is_floating_point()
    if given.shape != own.shape or not (floats or given.dtype == own.dtype):
        raise UserError(f"the checkpoint does not fit the model: {name} is {there}, not {here}")
    if floats and not given.to(own.dtype).isfinite().all():
        raise UserError(
            f"the checkpoint's weight {name} is not finite, so the run has diverged; choose "
            "another checkpoint, or train again with a lower optim.lr"
        )
