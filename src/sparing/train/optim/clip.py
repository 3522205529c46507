"""Gradient clipping by the norm of all gradients together."""

from collections.abc import Iterable

import torch
from torch import Tensor

from sparing.train.parts import lengths, own


@torch.no_grad()
def clip_(parameters: Iterable[Tensor], max_norm: float, *, scale: float = 1.0) -> Tensor:
    """Scale all gradients down to `max_norm` together, if longer; the norm before, on the device.

    A `max_norm` of 0 only measures. Gradients of a loss multiplied by `scale` are divided by it
    first, and the norm is the one after that division.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return torch.zeros(())
    parts = [own(gradient) for gradient in gradients]
    norm: Tensor = torch.linalg.vector_norm(torch.stack(lengths(parts, gradients[0]))) / scale
    if max_norm > 0:
        torch._foreach_mul_(parts, (max_norm / (norm + 1e-6)).clamp(max=1.0) / scale)
    elif scale != 1:
        torch._foreach_mul_(parts, 1 / scale)
    return norm
