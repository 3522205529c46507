"""The matrix products of a training step and nothing else, family by family.

Axes: B batch, N = B x T positions, T segment, S keys, D dim, F feed-forward, V vocabulary.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sparing.bench.timing import Task
from sparing.device import Hardware
from sparing.models.api import ModelConfig
from sparing.models.sha_rnn.config import SHARNNConfig
from sparing.nn.recurrent import CORES


@dataclass(frozen=True, slots=True)
class Load:
    """How many tokens the products process, and where they run."""

    batch: int
    segment: int
    hardware: Hardware

    @property
    def dtype(self) -> torch.dtype:
        """The precision in which autocast computes matrix products."""
        return getattr(torch, self.hardware.precision)  # type: ignore[no-any-return]  # a dtype

    def random(self, *shape: int) -> Tensor:
        """Small random numbers in that precision, so that nothing overflows."""
        return torch.randn(shape, device=self.hardware.device, dtype=self.dtype) * 0.1


def bare_tasks(family: str, config: ModelConfig, load: Load) -> dict[str, Task]:
    """The products of one step, forward and backward, in named parts; none for most families."""
    return PRODUCTS[family](config, load) if family in PRODUCTS else {}


def sha_rnn(config: SHARNNConfig, load: Load) -> dict[str, Task]:
    """Recurrent layers, Boom, attention over a full memory, softmax."""
    c = config
    attending = len(c.attention_at) if c.memory else 0
    parts: dict[str, list[Task]] = {
        "recurrent": [recurrence(c.core, c.dim, load) for _ in range(c.depth)],
        "boom": [projection(c.dim, c.boom_dim, load) for _ in range(c.depth)],
        "attention": [
            task
            for _ in range(attending)
            for task in (projection(c.dim, c.dim, load), attention(c.dim, c.memory, load))
        ],
        "softmax": [projection(c.dim, c.vocab_size, load)],
    }
    return {name: in_turn(tasks) for name, tasks in parts.items() if tasks}


def recurrence(kind: str, dim: int, load: Load) -> Task:
    """A recurrent layer of the model's kind, under the same autocast as in training."""
    core = CORES[kind](dim).to(load.hardware.device)
    x_BTD = load.random(load.batch, load.segment, dim).requires_grad_()
    grad_BTD = load.random(load.batch, load.segment, dim)
    zeros_BD = torch.zeros(load.batch, dim, device=load.hardware.device)
    inputs = [x_BTD, *core.parameters()]

    def run() -> None:
        with load.hardware.autocast():
            y_BTD, _ = core(x_BTD, tuple(zeros_BD for _ in core.state_names))
        torch.autograd.grad(y_BTD, inputs, grad_BTD.to(y_BTD.dtype))

    return run


def projection(dim: int, out: int, load: Load) -> Task:
    """y = x W^T and the gradients of x and W."""
    x_ND = load.random(load.batch * load.segment, dim)
    weight_FD, grad_NF = load.random(out, dim), load.random(load.batch * load.segment, out)

    def run() -> None:
        torch.mm(x_ND, weight_FD.mT)
        torch.mm(grad_NF, weight_FD)
        torch.mm(grad_NF.mT, x_ND)

    return run


def attention(dim: int, memory: int, load: Load) -> Task:
    """q k^T and weights x values, and their gradients.

    Memory has no gradient: only keys and values of the segment itself do.
    """
    own, keys = load.segment, max(memory, load.segment)
    query_BTD, grad_BTD = (load.random(load.batch, own, dim) for _ in range(2))
    keys_BSD, values_BSD = (load.random(load.batch, keys, dim) for _ in range(2))
    weights_BTS, grad_BTS = (load.random(load.batch, own, keys) for _ in range(2))

    def run() -> None:
        torch.bmm(query_BTD, keys_BSD.mT)
        torch.bmm(weights_BTS, values_BSD)
        torch.bmm(grad_BTD, values_BSD.mT)
        torch.bmm(weights_BTS[:, :, -own:].mT, grad_BTD)
        torch.bmm(grad_BTS, keys_BSD)
        torch.bmm(grad_BTS[:, :, -own:].mT, query_BTD)

    return run


def in_turn(tasks: list[Task]) -> Task:
    """One task that does several."""

    def run() -> None:
        for task in tasks:
            task()

    return run


PRODUCTS: Mapping[str, Callable[[Any, Load], dict[str, Task]]] = {"sha_rnn": sha_rnn}
"""The products of each family whose step is compared with them."""
