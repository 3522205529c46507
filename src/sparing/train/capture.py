"""From a training to a checkpoint and back, bit for bit."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from sparing.data.stream import Cursor
from sparing.errors import UserError
from sparing.models.api import LanguageModel
from sparing.train.checkpoint import Checkpoint
from sparing.train.distributed.dtensor import distribute_like
from sparing.train.distributed.world import World
from sparing.train.state import Progress, Training


def capture(run: Training) -> Checkpoint:
    """Everything the next process needs to go on with the same numbers."""
    state = {f"state.{name}": tensor for name, tensor in run.world.gather_state(run.state).items()}
    for kind, own in generators(run).items():
        for rank, tensor in enumerate(run.world.gather(own)):
            state[of_rank(kind, rank)] = tensor
    model = run.world.full_tensors(model_tensors(run.model))
    optimizer = run.world.full_tensors(run.optimizer.tensors())
    return Checkpoint({"model": model, "optimizer": optimizer, "state": state}, position(run))


def capture_optimizer(run: Training) -> Checkpoint:
    """What judging can change: an averaging optimizer remembers valid losses."""
    return Checkpoint({"optimizer": run.world.full_tensors(run.optimizer.tensors())}, position(run))


def capture_weights(run: Training) -> Checkpoint:
    """The weights alone, and where they were reached."""
    return Checkpoint({"model": run.world.full_tensors(model_tensors(run.model))}, position(run))


def position(run: Training) -> dict[str, Any]:
    """Where a run stands, as plain numbers."""
    return asdict(run.progress) | {
        "cursor": list(run.progress.cursor),
        "loss_scale": [run.scale.value, run.scale.good_steps] if run.scale.active else None,
    }


def generators(run: Training) -> dict[str, Tensor]:
    """The state of this process's random generators."""
    found = {"rng.cpu": torch.get_rng_state()}
    if run.hardware.device.type == "cuda":
        found["rng.cuda"] = torch.cuda.get_rng_state(run.hardware.device)
    return found


def of_rank(kind: str, rank: int) -> str:
    """The name of a rank's random generator in a checkpoint."""
    return f"{kind}.{rank}" if rank else kind


def broadcast_checkpoint(world: World, checkpoint: Checkpoint | None) -> Checkpoint | None:
    """The checkpoint rank 0 has read, for every process."""
    cursor = world.broadcast_object(None if checkpoint is None else dict(checkpoint.cursor))
    if cursor is None:
        return None
    held = checkpoint.tensors if checkpoint is not None else {}
    stems = world.broadcast_object(list(held))
    return Checkpoint({stem: world.broadcast_tensors(held.get(stem)) for stem in stems}, cursor)


def resumable(checkpoint: Checkpoint) -> bool:
    """Whether a run can go on from it bit for bit; `best` holds weights alone."""
    return {"optimizer", "state"} <= checkpoint.tensors.keys()


def restore(run: Training, checkpoint: Checkpoint) -> None:
    """The inverse of `capture`."""
    restore_weights(run, checkpoint)
    saved, cursor = checkpoint.tensors["state"], dict(checkpoint.cursor)
    scale = cursor.pop("loss_scale")
    if scale is not None and run.scale.active:
        run.scale.value, run.scale.good_steps = scale
    cursor["cursor"] = Cursor(*cursor["cursor"])
    run.progress = Progress(**cursor)
    carried = {
        name.removeprefix("state."): tensor
        for name, tensor in saved.items()
        if name.startswith("state.")
    }
    device = run.hardware.device
    run.state = {
        name: tensor.to(device) for name, tensor in run.world.scatter_state(carried).items()
    }
    _restore_generators(run, saved)


def _restore_generators(run: Training, saved: Mapping[str, Tensor]) -> None:
    """Those of this rank; one that did not exist when they were saved begins a sequence."""
    cpu, cuda = (of_rank(kind, run.world.rank) for kind in ("rng.cpu", "rng.cuda"))
    if cpu not in saved:
        torch.manual_seed((torch.initial_seed() + run.progress.step) % (1 << 63))
        return
    torch.set_rng_state(saved[cpu])
    if cuda in saved and run.hardware.device.type == "cuda":
        torch.cuda.set_rng_state(saved[cuda], run.hardware.device)


def second_pass(run: Training, checkpoint: Checkpoint) -> None:
    """Go on with the weights alone: fresh moments, empty state, warm-up anew, text from its start.

    It is what SHA-RNN's second command does to halve the learning rate.
    """
    load_model_tensors(run.model, checkpoint.tensors["model"])
    cursor = dict(checkpoint.cursor)
    del cursor["loss_scale"]
    epoch = int(cursor["cursor"][0]) + 1
    cursor |= {"cursor": Cursor(epoch, 0, 0), "pass_step": cursor["step"], "pass_share": -1.0}
    # A lower rate is what a run that went back is advised to try: it starts with a clean slate.
    cursor |= {"bad": 0, "rollbacks": 0, "fruitless": False}
    run.progress = Progress(**cursor)


def restore_weights(run: Training, checkpoint: Checkpoint) -> None:
    """Model and optimizer only."""
    load_model_tensors(run.model, checkpoint.tensors["model"])
    run.optimizer.load_tensors(dict(checkpoint.tensors["optimizer"]))


def model_tensors(model: LanguageModel) -> dict[str, Tensor]:
    """Parameters and buffers by name, each shared tensor once; no tables made from settings."""
    tables = {
        f"{prefix}{'.' if prefix else ''}{name}"
        for prefix, module in model.named_modules()
        for name in module._non_persistent_buffers_set
    }
    buffers = {name: tensor for name, tensor in model.named_buffers() if name not in tables}
    return {**dict(model.named_parameters()), **buffers}


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
        tensor.copy_(distribute_like(tensors[name], tensor))
