"""One step of a model as a graph that a compiler turns into few, long loops.

Axes: B batch (one lane), T segment (one token), V vocabulary, X any.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sparing.models.api import LanguageModel, Output, State, is_ring

ROWS = 16
"""Rows that a product sums before it goes on, so that memory is read in order."""


class Step(nn.Module):
    """A token and a state in; logits and what changes of the state, rings aside, out."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, token_11: Tensor, state: State) -> tuple[Tensor, ...]:
        """Rings are written in place."""
        out: Output = self.model(token_11, state)
        logits_1V = self.model.head.logits(out.hidden_BTD[:, -1])
        return logits_1V, *(out.state[name] for name in state if not is_ring(name))


class NarrowStep(nn.Module):
    """A step whose weights are inputs, stored in 16 bits where that loses nothing."""

    def __init__(self, model: LanguageModel, names: tuple[str, ...]) -> None:
        super().__init__()
        step = Step(model)
        # In a list, so that the weights are not registered a second time.
        self._step, self._names = [step], names
        tensors = dict(step.named_parameters()) | dict(step.named_buffers())
        self._fields = {f"tensor{number}": name for number, name in enumerate(tensors)}
        for field, name in self._fields.items():
            self.register_buffer(field, narrowed(tensors[name].detach()))

    def forward(self, token_11: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return logits, and the next state without its rings, in the order of the names."""
        weights = {name: _widened(getattr(self, field)) for field, name in self._fields.items()}
        state = dict(zip(self._names, tensors, strict=True))
        found: tuple[Tensor, ...] = torch.func.functional_call(
            self._step[0], weights, (token_11, state)
        )
        return found


def narrowed(tensor: Tensor) -> Tensor:
    """Return a matrix in bfloat16 if that loses nothing; half the bytes are read then."""
    if tensor.dtype != torch.float32 or tensor.ndim != 2:
        return tensor
    narrow = tensor.bfloat16()
    return narrow if torch.equal(narrow.float(), tensor) else tensor


def _widened(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


def export_step(step: NarrowStep, state: State) -> Any:
    """Return the graph of a step for one lane, for rings of any length."""
    auto = torch.export.Dim.AUTO
    shapes = tuple({x.ndim - 2: auto} if is_ring(name) else None for name, x in state.items())
    given = (torch.zeros(1, 1, dtype=torch.int64), *state.values())
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        exported = torch.export.export(step, given, dynamic_shapes=(None, shapes), strict=False)
        table = torch.export.default_decompositions()
        table.update(_as_loops())  # type: ignore[no-untyped-call]  # torch has no types for it
        return exported.run_decompositions(table)


def _as_loops() -> dict[Any, Callable[..., Tensor]]:
    """Products with one row, and writes to rings, as sums and stores that can be vectorised.

    The library behind torch's products reads a matrix for a single row at a quarter of the speed.
    """
    aten = torch.ops.aten
    return {
        aten.linear.default: _linear,
        aten.mm.default: _mm,
        aten.addmm.default: _addmm,
        aten.bmm.default: _bmm,
        aten.scatter.src: _scatter,
    }


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    product = (x.unsqueeze(-2) * weight).sum(-1)
    return product if bias is None else product + bias


def _mm(one: Tensor, two: Tensor) -> Tensor:
    return (one[:, :, None] * two).sum(1)


def _addmm(bias: Tensor, one: Tensor, two: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return beta * bias + alpha * _mm(one, two)


def _bmm(one_XTR: Tensor, two_XRK: Tensor) -> Tensor:
    batch, rows, inner = one_XTR.shape
    # A size of its own: the compiler would derive one that is left out from the ring's length.
    width = two_XRK.size(2)
    if inner % ROWS or inner <= width:
        return (one_XTR[..., None] * two_XRK[:, None]).sum(2)
    # The values of a ring: summed a few rows at a time, or every column would be a pass of its own.
    groups = inner // ROWS
    weights = one_XTR.view(batch, rows, groups, ROWS, 1)
    return (weights * two_XRK.view(batch, 1, groups, ROWS, width)).sum(3).sum(2)


def _scatter(ring: Tensor, dim: int, slot: Tensor, fresh: Tensor) -> Tensor:
    """Torch's compiler copies the whole target of a scatter, but writes this one in place."""
    axes = range(ring.ndim)
    where = [
        torch.arange(size, device=ring.device).view([-1 if axis == own else 1 for axis in axes])
        for own, size in enumerate(slot.shape)
    ]
    where[dim] = slot
    written: Tensor = torch.ops.aten.index_put(ring, where, fresh)
    return written
