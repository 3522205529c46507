"""Gradient clipping by the norm of all gradients together."""

from collections.abc import Iterable

import torch
from torch import Tensor

from sparing.train.distributed.dtensor import norms, to_local

WHOLE = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Whole numbers of as many bytes."""


@torch.no_grad()
def clip_(parameters: Iterable[Tensor], max_norm: float, *, scale: float = 1.0) -> Tensor:
    """Scale all gradients down to `max_norm` together, if longer; the norm before, on the device.

    A `max_norm` of 0 only measures. Gradients of a loss multiplied by `scale` are divided by it
    first, and the norm is the one after that division. Where it is not finite, gradients become 0.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return torch.zeros(())
    parts = [to_local(gradient) for gradient in gradients]
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms(parts, gradients[0]))) / scale
    if max_norm > 0:
        torch._foreach_mul_(parts, (max_norm / (norm + 1e-6)).clamp(max=1.0) / scale)
    elif scale != 1:
        torch._foreach_mul_(parts, 1 / scale)
    if norm.device.type != "cpu":
        _keep_(parts, norm.isfinite())
    elif not norm.isfinite():
        torch._foreach_zero_(parts)
    return norm


def _keep_(gradients: list[Tensor], wanted: Tensor) -> None:
    """Zeros instead of `gradients` unless `wanted`, which nobody waits for.

    As whole numbers, bit by bit: 0 times what is not finite is not 0.
    """
    bits = [gradient.view(WHOLE[gradient.itemsize]) for gradient in gradients]
    torch._foreach_mul_(bits, wanted.to(torch.int32))
