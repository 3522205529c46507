"""Min-trust LAMB, the optimizer of SHA-RNN: LAMB (arXiv:1904.00962) with a least trust ratio."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from sparing.training.distributed.dtensor import norms, to_local

NORM_LIMIT = 10.0
"""Upper limit of a weight norm in the trust ratio."""


class Moments(NamedTuple):
    """Gradients, their running averages, and those of their squares, tensor by tensor."""

    gradients: list[Tensor]
    means: list[Tensor]
    squares: list[Tensor]


class Lamb(Optimizer):
    """LAMB without bias correction; it never waits for the device."""

    def __init__(  # noqa: PLR0913  the settings of LAMB
        self,
        params: ParamsT,
        *,
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        min_trust: float = 0.25,
    ) -> None:
        """A `min_trust` of 0 is LAMB without the floor."""
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "min_trust": min_trust,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]  # torch overloads it
        """Update every parameter that has a gradient."""
        loss = torch.enable_grad()(closure)() if closure else None
        for group in self.param_groups:
            for parameters, buffers in _batches([p for p in group["params"] if p.grad is not None]):
                self._update(parameters, buffers, group)
        return loss

    def _update(self, parameters: list[Tensor], steps: list[Tensor], group: dict[str, Any]) -> None:
        weights = [to_local(p) for p in parameters]
        torch._foreach_copy_(steps, weights)
        torch._foreach_mul_(steps, group["weight_decay"])
        given = self._moments(parameters)
        supported = parameters[0].device.type in ("cpu", "cuda")
        # The fused kernel ignores strides.
        contiguous = all(tensor.is_contiguous() for tensor in (*weights, *given.gradients))
        add = add_adam_fused if supported and contiguous else add_adam
        add(steps, given, group["betas"], group["eps"])
        ratios = trust(norms(weights, parameters[0]), norms(steps, parameters[0]))
        ratios = ratios.clamp(min=group["min_trust"])
        for weight, step, ratio in zip(weights, steps, ratios.unbind(), strict=True):
            weight.addcmul_(step, ratio, value=-group["lr"])

    def _moments(self, parameters: list[Tensor]) -> Moments:
        for p in parameters:
            if not self.state[p]:
                self.state[p].update(exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
        return Moments(
            [to_local(p.grad) for p in parameters if p.grad is not None],
            [to_local(self.state[p]["exp_avg"]) for p in parameters],
            [to_local(self.state[p]["exp_avg_sq"]) for p in parameters],
        )


def trust(weight_norms: tuple[Tensor, ...], step_norms: tuple[Tensor, ...]) -> Tensor:
    """Norm of the weights, limited, divided by that of the step; 1 if either is zero."""
    weights = torch.stack(weight_norms).clamp(max=NORM_LIMIT)
    steps = torch.stack(step_norms)
    return torch.where((weights == 0) | (steps == 0), 1.0, weights / steps)


def add_adam(totals: list[Tensor], given: Moments, betas: tuple[float, float], eps: float) -> None:
    """Update both averages and add mean / (sqrt(square) + eps) to `totals`: the definition."""
    torch._foreach_lerp_(given.means, given.gradients, 1 - betas[0])
    torch._foreach_mul_(given.squares, betas[1])
    torch._foreach_addcmul_(given.squares, given.gradients, given.gradients, 1 - betas[1])
    roots = torch._foreach_sqrt(given.squares)
    torch._foreach_add_(roots, eps)
    torch._foreach_addcdiv_(totals, given.means, roots)


def add_adam_fused(
    totals: list[Tensor], given: Moments, betas: tuple[float, float], eps: float
) -> None:
    """The same in one pass over memory, by torch's fused Adam."""
    # At step infinity Adam's bias correction is a division by one.
    endless = torch.full((), torch.inf, device=totals[0].device)
    torch._fused_adam_(
        totals,
        given.gradients,
        given.means,
        given.squares,
        [],
        [endless] * len(totals),
        lr=-1.0,
        beta1=betas[0],
        beta2=betas[1],
        weight_decay=0.0,
        eps=eps,
        amsgrad=False,
        maximize=False,
    )


def _batches(parameters: list[Tensor]) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """Parameters with buffers for their steps: all at once, to save kernel launches.

    On a CPU one by one in the same buffer, which stays in the cache: allocating memory would cost
    more than the arithmetic.
    """
    if not parameters:
        return
    weights = [to_local(p) for p in parameters]
    if parameters[0].device.type != "cpu":
        yield parameters, [torch.empty_like(weight) for weight in weights]
        return
    buffer = torch.empty(max(weight.nbytes for weight in weights), dtype=torch.uint8)
    for p, weight in zip(parameters, weights, strict=True):
        yield [p], [buffer[: weight.nbytes].view(weight.dtype).view(weight.shape)]
