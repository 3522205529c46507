"""Gradient clipping by the global norm."""

from collections.abc import Iterable

import torch
from torch import Tensor

from sparing.training.distributed.dtensor import norms, to_local

INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer types by their size in bytes."""


@torch.no_grad()
def clip_(parameters: Iterable[Tensor], max_norm: float, *, scale: float = 1.0) -> Tensor:
    """Scale all gradients down to a global norm of `max_norm`; return the norm before.

    A `max_norm` of 0 only measures. Gradients of a loss multiplied by `scale` are divided by it
    first. If the norm is not finite, all gradients become zero. The norm stays on the device.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return torch.zeros(())
    local = [to_local(gradient) for gradient in gradients]
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms(local, gradients[0]))) / scale
    if max_norm > 0:
        torch._foreach_mul_(local, (max_norm / (norm + 1e-6)).clamp(max=1.0) / scale)
    elif scale != 1:
        torch._foreach_mul_(local, 1 / scale)
    if norm.device.type != "cpu":
        _zero_unless_(local, norm.isfinite())
    elif not norm.isfinite():
        torch._foreach_zero_(local)
    return norm


def _zero_unless_(gradients: list[Tensor], wanted: Tensor) -> None:
    """Set `gradients` to zero unless `wanted`, without waiting for the device.

    They are multiplied as integers: zero times infinity would not be zero.
    """
    bits = [gradient.view(INTEGERS[gradient.itemsize]) for gradient in gradients]
    torch._foreach_mul_(bits, wanted.to(torch.int32))
