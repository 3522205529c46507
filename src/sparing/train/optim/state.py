"""Several optimizers driven as one, and their whole state as a flat dict of tensors."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from sparing.errors import UserError
from sparing.train.distributed.dtensor import distribute_like
from sparing.train.optim.averaging import Averaging
from sparing.train.optim.config import OptimConfig


class OptimizerSet:
    """One or more torch optimizers with named parameters, stepped together."""

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        config: OptimConfig,
        averaging: Averaging | None = None,
    ) -> None:
        self.optimizers, self.config, self.averaging = tuple(optimizers), config, averaging
        for group in self.param_groups:
            group.setdefault("base_lr", group["lr"])

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all optimizers."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    @property
    def lr(self) -> float:
        """The present learning rate of the first group."""
        return float(self.param_groups[0]["lr"])

    def step(self) -> None:
        """Update every parameter that has a gradient."""
        for optimizer in self.optimizers:
            optimizer.step()
        if self.averaging is not None:
            self.averaging.after_step()

    def judged(self, loss_nats: float) -> None:
        """Hear of a valid loss, as some optimizers change their ways by it."""
        if self.averaging is not None:
            self.averaging.judged(loss_nats)

    def averaged(self) -> AbstractContextManager[None]:
        """Within, the model has the weights it is to be judged by and kept with."""
        return nullcontext() if self.averaging is None else self.averaging.swapped_in()

    def zero_grad(self) -> None:
        """Drop every gradient."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def scale_lr(self, factor: float) -> None:
        """Set the learning rate of every group to `factor` of its base rate."""
        for group in self.param_groups:
            group["lr"] = group["base_lr"] * factor

    def tensors(self) -> dict[str, Tensor]:
        """The state as `<parameter name>/<key>`; the tensors themselves, not copies."""
        return dict(self._entries())

    @torch.no_grad()
    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Take up a state that `tensors` gave; nothing changes when it does not fit."""
        own = self.tensors()
        for name, tensor in own.items():
            _check(name, tensor, tensors.get(name))
        for name in tensors:
            if name not in own:
                raise UserError(f"optimizer state {name!r} belongs to another model or optimizer")
        for name, tensor in own.items():
            tensor.copy_(distribute_like(tensors[name], tensor))

    def _entries(self) -> Iterator[tuple[str, Tensor]]:
        for optimizer in self.optimizers:
            saved = optimizer.state_dict()
            for group in saved["param_groups"]:
                for name, index in zip(group["param_names"], group["params"], strict=True):
                    for key, tensor in saved["state"].get(index, {}).items():
                        yield f"{name}/{key}", tensor
        if self.averaging is not None:
            yield from self.averaging.tensors().items()


def _check(name: str, own: Tensor, given: Tensor | None) -> None:
    if given is None:
        raise UserError(f"optimizer state {name!r} is missing; was it saved by another optimizer?")
    if given.shape != own.shape or given.dtype != own.dtype:
        raise UserError(
            f"optimizer state {name!r} is {_describe(given)}, but the model needs {_describe(own)}"
        )


def _describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
