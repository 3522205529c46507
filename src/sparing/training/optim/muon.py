"""Muon (Jordan et al., 2024, kellerjordan.github.io/posts/muon): orthogonalised momentum."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from sparing.training.distributed.dtensor import distribute_like, full_tensor_of, to_local

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic iteration that moves every singular value to about 1."""
ITERATIONS = 5


class _Update(NamedTuple):
    parameter: Tensor
    group: dict[str, Any]
    blocks: Tensor


class Muon(Optimizer):
    """Muon with Nesterov momentum and decoupled weight decay, for matrices only.

    `blocks` in a parameter group is the number of matrices stacked along the rows of its tensors;
    each of them is orthogonalised on its own.
    """

    def __init__(
        self,
        params: ParamsT,
        *,
        lr: float = 0.02,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "blocks": 1}
        super().__init__(params, defaults)
        for group in self.param_groups:
            for p in group["params"]:
                if p.ndim != 2 or p.size(0) % group["blocks"]:
                    raise ValueError(
                        f"Muon needs matrices of {group['blocks']} blocks, not {tuple(p.shape)}"
                    )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]  # torch overloads it
        """Update every parameter that has a gradient."""
        loss = torch.enable_grad()(closure)() if closure else None
        shaped: dict[torch.Size, list[_Update]] = {}
        for group in self.param_groups:
            for update in self._momentum(group):
                shaped.setdefault(update.blocks.shape[1:], []).append(update)
        for updates in shaped.values():
            _apply(updates)
        return loss

    def _momentum(self, group: dict[str, Any]) -> list[_Update]:
        parameters = [p for p in group["params"] if p.grad is not None]
        if not parameters:
            return []
        for p in parameters:
            if not self.state[p]:
                self.state[p]["momentum_buffer"] = torch.zeros_like(p)
        buffers = [to_local(self.state[p]["momentum_buffer"]) for p in parameters]
        gradients = [to_local(p.grad) for p in parameters if p.grad is not None]
        torch._foreach_lerp_(buffers, gradients, 1 - group["momentum"])
        nesterov = torch._foreach_lerp(gradients, buffers, group["momentum"])
        return [
            _Update(p, group, full_tensor_of(update, p).reshape(group["blocks"], -1, p.size(1)))
            for p, update in zip(parameters, nesterov, strict=True)
        ]


def _apply(updates: list[_Update]) -> None:
    """Orthogonalise all blocks of one shape as a batch and update their parameters."""
    every_NRC = orthogonalise(torch.cat([update.blocks for update in updates]))
    rows, columns = every_NRC.shape[1:]
    scale = math.sqrt(max(1.0, rows / columns))
    # In the dtype and layout of the weights, so that one kernel updates each group below.
    ready_NRC = every_NRC.to(updates[0].parameter.dtype).contiguous()
    parts = torch.split(ready_NRC, [update.blocks.size(0) for update in updates])
    equal: dict[tuple[float, float], list[tuple[Tensor, Tensor]]] = {}
    for (p, group, _), part_NRC in zip(updates, parts, strict=True):
        pairs = equal.setdefault((group["lr"], group["weight_decay"]), [])
        pairs.append((to_local(p), to_local(distribute_like(part_NRC.view(p.shape), p))))
    for (lr, weight_decay), pairs in equal.items():
        parameters, steps = map(list, zip(*pairs, strict=True))
        if weight_decay:
            torch._foreach_mul_(parameters, 1 - lr * weight_decay)
        torch._foreach_add_(parameters, steps, alpha=-lr * scale)


def orthogonalise(matrices_NRC: Tensor) -> Tensor:
    """Approximately U V^T of each matrix U S V^T; singular values end between 0.7 and 1.2.

    Computes and returns bfloat16 on CUDA and float32 elsewhere.
    """
    tall = matrices_NRC.size(1) > matrices_NRC.size(2)
    x = matrices_NRC.mT if tall else matrices_NRC
    x = x / (torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True) + 1e-7)
    x = x.to(torch.bfloat16 if x.is_cuda else torch.float32)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        mixed = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, mixed, x, beta=a)
    return x.mT if tall else x
