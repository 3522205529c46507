"""Adagrad with clipping per tensor, the optimizer of Adaptive Span.

Clipping shortens the step but does not change the running sum, so it differs from clipping the
gradient first: Adagrad's step does not depend on the size of the gradient, and would undo that.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from sparing.training.distributed.dtensor import norms, to_local

EPS = 1e-10


class Adagrad(Optimizer):
    """Adagrad without learning rate decay; it never waits for the device."""

    def __init__(
        self,
        params: ParamsT,
        *,
        lr: float = 0.07,
        weight_decay: float = 0.0,
        tensor_clip: float = 0.0,
    ) -> None:
        """Shorten the step of tensors whose gradient norm exceeds `tensor_clip`; 0 turns it off."""
        defaults = {"lr": lr, "weight_decay": weight_decay, "tensor_clip": tensor_clip}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]  # torch overloads it
        """Update every parameter that has a gradient."""
        loss = torch.enable_grad()(closure)() if closure else None
        for group in self.param_groups:
            moved = [p for p in group["params"] if p.grad is not None]
            # On a CPU one by one, so that a tensor's step is still in the cache when it is applied.
            on_cpu = bool(moved) and moved[0].device.type == "cpu"
            for parameters in [[p] for p in moved] if on_cpu else [moved] if moved else []:
                self._update(parameters, group)
        return loss

    def _update(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        weights = [to_local(p) for p in parameters]
        gradients = [to_local(p.grad) for p in parameters if p.grad is not None]
        if group["weight_decay"]:
            gradients = list(torch._foreach_add(gradients, weights, alpha=group["weight_decay"]))
        sums = [to_local(self._sum(p)) for p in parameters]
        torch._foreach_addcmul_(sums, gradients, gradients)
        steps = torch._foreach_sqrt(sums)
        torch._foreach_add_(steps, EPS)
        torch._foreach_reciprocal_(steps)
        torch._foreach_mul_(steps, gradients)
        shares = clip_factors(norms(gradients, parameters[0]), group["tensor_clip"])
        for weight, step, share in zip(weights, steps, shares.unbind(), strict=True):
            weight.addcmul_(step, share, value=-group["lr"])

    def _sum(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if not state:
            state["sum"] = torch.zeros_like(parameter)
        total: Tensor = state["sum"]
        return total


def clip_factors(norms: tuple[Tensor, ...], limit: float) -> Tensor:
    """The factor on the step of each tensor."""
    stacked = torch.stack(norms)
    if not limit:
        return torch.ones_like(stacked)
    return (limit / (stacked + EPS)).clamp(max=1.0)
