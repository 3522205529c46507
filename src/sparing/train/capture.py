"""Conversion of a training to a checkpoint and back, bit for bit."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, cast

import torch
from torch import Tensor

from sparing.data.stream import Cursor
from sparing.documents import conform, damage_named
from sparing.errors import UserError
from sparing.models.api import LanguageModel
from sparing.train.checkpoint import Checkpoint
from sparing.train.distributed.dtensor import distribute_like
from sparing.train.distributed.world import World
from sparing.train.state import Counters, Training


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
    """Counters and loss scale as JSON, the content of `cursor.json`."""
    scale = training.scale
    return asdict(training.counters) | {
        "cursor": list(training.counters.cursor),
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
    stems = world.broadcast_object(list(held))
    return Checkpoint({stem: world.broadcast_tensors(held.get(stem)) for stem in stems}, cursor)


def is_resumable(checkpoint: Checkpoint) -> bool:
    """Whether a run can continue from it bit for bit; `best` holds the weights alone."""
    return {"optimizer", "state"} <= checkpoint.tensors.keys()


def restore(training: Training, checkpoint: Checkpoint) -> None:
    """The inverse of `capture`."""
    restore_weights(training, checkpoint)
    saved, scale = checkpoint.tensors["state"], checkpoint.cursor.get("loss_scale")
    if scale is not None and training.scale.active:
        training.scale.value, training.scale.good_steps = scale
    training.counters = _counters(checkpoint)
    carried = {
        name.removeprefix("state."): tensor
        for name, tensor in saved.items()
        if name.startswith("state.")
    }
    device = training.hardware.device
    local = training.world.scatter_state(carried)
    training.state = {name: tensor.to(device) for name, tensor in local.items()}
    _restore_rng(training, saved)


def _counters(checkpoint: Checkpoint) -> Counters:
    """The counters in a checkpoint; those that an older version did not have at their defaults."""
    stored = {name: value for name, value in checkpoint.cursor.items() if name != "loss_scale"}
    with damage_named("the checkpoint's cursor.json"):
        found = conform({**stored, "cursor": Cursor(*stored.get("cursor", ()))}, Counters)
    return cast("Counters", found)


def _restore_rng(training: Training, saved: Mapping[str, Tensor]) -> None:
    """Restore this rank's generators; a rank that was not saved starts a new sequence."""
    cpu, cuda = (rng_name(kind, training.world.rank) for kind in ("rng.cpu", "rng.cuda"))
    if cpu not in saved:
        torch.manual_seed((torch.initial_seed() + training.counters.step) % (1 << 63))
        return
    torch.set_rng_state(saved[cpu])
    if cuda in saved and training.hardware.device.type == "cuda":
        torch.cuda.set_rng_state(saved[cuda], training.hardware.device)


def start_second_pass(training: Training, checkpoint: Checkpoint) -> None:
    """Keep only the weights: new optimizer state, empty memory, new warm-up, start of the text.

    This is what the second command of SHA-RNN does to halve the learning rate.
    """
    load_model_tensors(training.model, checkpoint.tensors["model"])
    stored = _counters(checkpoint)
    training.counters = replace(
        stored,
        cursor=Cursor(stored.cursor.epoch + 1, 0, 0),
        pass_step=stored.step,
        pass_share=None,
        # A lower rate is what the error message recommends after rollbacks: they are forgotten.
        bad_steps=0,
        rollbacks=0,
        no_progress=False,
    )


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
    """The inverse of `model_tensors`; names and shapes must match."""
    own = model_tensors(model)
    if own.keys() != tensors.keys():
        odd = sorted(own.keys() ^ tensors.keys())[0]
        raise UserError(f"the checkpoint does not fit the model: {odd} is in only one of them")
    for name, tensor in own.items():
        if tensor.shape != tensors[name].shape:
            shapes = f"{tuple(tensors[name].shape)} there, {tuple(tensor.shape)} here"
            raise UserError(f"the checkpoint does not fit the model: {name} is {shapes}")
        tensor.copy_(distribute_like(tensors[name], tensor))
