"""Several optimizers used as one, with their state as a flat dict of tensors."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from sparing.errors import UserError
from sparing.training.distributed.dtensor import distribute_like
from sparing.training.optim.averaging import PRESENT, Averaging

DecaySchedule = Literal["lr", "constant"]


class OptimizerSet:
    """One or more torch optimizers with named parameters, stepped together."""

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        averaging: Averaging | None = None,
        decay_schedule: DecaySchedule = "lr",
    ) -> None:
        self.optimizers, self.averaging = tuple(optimizers), averaging
        self.decay_schedule = decay_schedule
        for group in self.param_groups:
            group.setdefault("base_lr", group["lr"])
            group.setdefault("base_decay", group["weight_decay"])

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all optimizers."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    @property
    def lr(self) -> float:
        """The current learning rate of the first group."""
        return float(self.param_groups[0]["lr"])

    def step(self) -> None:
        """Update every parameter that has a gradient."""
        for optimizer in self.optimizers:
            optimizer.step()
        if self.averaging is not None:
            self.averaging.after_step()

    def report_validation(self, loss_nats: float) -> None:
        """Report a valid loss, which starts the averaging of NT-ASGD."""
        if self.averaging is not None:
            self.averaging.report_validation(loss_nats)

    def candidates(self) -> tuple[float, ...]:
        """The weights to validate: decays of their averages, 0 for the weights themselves."""
        return (PRESENT,) if self.averaging is None else self.averaging.candidates()

    def averaged(self, decay: float) -> AbstractContextManager[None]:
        """Context in which the model has one of the `candidates`, to validate or to save it."""
        return nullcontext() if self.averaging is None else self.averaging.swapped_in(decay)

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def scale_lr(self, factor: float) -> None:
        """Set the learning rate of every group to `factor` of its base rate.

        Optimizers shrink weights by rate times decay. With a constant decay schedule that product
        stays the same, unless the rate is 0.
        """
        for group in self.param_groups:
            group["lr"] = group["base_lr"] * factor
            if self.decay_schedule == "constant" and factor:
                group["weight_decay"] = group["base_decay"] / factor

    def tensors(self) -> dict[str, Tensor]:
        """The state as `<parameter name>/<key>`; the tensors themselves, not copies."""
        return dict(self._entries())

    @torch.no_grad()
    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Load a state returned by `tensors`; nothing changes if it does not fit."""
        current = self.tensors()
        for name, tensor in current.items():
            _check(name, tensor, tensors.get(name))
        for name in tensors:
            if name not in current:
                raise UserError(f"optimizer state {name!r} belongs to another model or optimizer")
        for name, tensor in current.items():
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
    if given.isnan().any():
        raise UserError(f"optimizer state {name!r} is not a number; choose another checkpoint")


def _describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
