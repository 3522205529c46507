"""Lanes that a model reads in lock step, one token of each at a time, perhaps learning from them.

Whoever writes and whoever reads a compressed file must get the same logits to the last bit. These
depend on the number of lanes and threads and on the length of a segment, so both sides do exactly
what is written here. Axes: B lanes, T chunk, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparing.device import Hardware
from sparing.errors import UserError
from sparing.evaluation.window import to_device
from sparing.models.api import (
    LanguageModel,
    Output,
    State,
    crop_rings,
    eval_mode,
    fill_static,
    is_ring,
    narrow_rings,
    split_rings,
)

MAX_LANES = 4096
MAX_NORM = 0.5
"""Longer gradients are cut to this: those of a text unlike any before would spoil the weights."""
BLOCK = 64
"""Slots by which the part of the rings grows that is attended to."""
IntArray = npt.NDArray[np.int64]
Reader = Callable[[IntArray], npt.NDArray[np.float64]]
"""Reads one token per lane (B,) and returns the logits (B, V) of the next ones."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Learning:
    """How the model learns from the text that it has coded."""

    chunk: int = 64
    """Tokens per lane between two updates."""
    rate: float = 0.05
    """Learning rate of plain gradient descent on the mean loss of a chunk."""

    def __post_init__(self) -> None:
        if not 1 <= self.chunk <= 1 << 20 or not 0 < self.rate <= 1:
            raise UserError(
                f"learning needs a chunk of at least 1 and a rate above 0 and at most 1, not "
                f"{self.chunk} and {self.rate:g}"
            )

    def optimizer(self, parameters: Sequence[Tensor]) -> torch.optim.Optimizer:
        """The optimizer of both sides."""
        return torch.optim.SGD(parameters, lr=self.rate)


@contextmanager
def open_lanes(
    model: LanguageModel, hardware: Hardware, lanes: int, length: int, learning: Learning | None
) -> Iterator[Reader]:
    """Yield a reader of fresh lanes of at most `length` tokens; then the model is as it was."""
    with eval_mode(model, hardware):
        if learning is None:
            step = open_steps(model, lanes, length)
            yield lambda ids_B: _to_array(step(to_device(ids_B, hardware.device)))
            return
        learner = Learner(model, lanes, length, learning)
        try:
            yield lambda ids_B: _to_array(learner.read(to_device(ids_B, hardware.device)))
        finally:
            learner.undo_()


def open_steps(
    model: LanguageModel, lanes: int, length: int, carried: State | None = None, read: int = 0
) -> Callable[[Tensor], Tensor]:
    """Return a function that reads a token per lane and returns logits; weights must not change.

    It begins at the start of a text, or goes on from the state `carried` after `read` tokens.
    Memories are rings where they can be, without slots that `length` tokens do not reach, where
    none count.
    """
    narrow = not model.attends_to_empty_slots
    first = crop_rings(model.static_state(1), length) if narrow else model.static_state(1)
    state: State = {name: x.repeat(lanes, *(1,) * (x.ndim - 1)) for name, x in first.items()}
    if carried is not None and (filled := fill_static(state, carried)) is not None:
        state = filled
    elif carried is not None:
        state, narrow = carried, False

    def step(ids_B: Tensor) -> Tensor:
        nonlocal state, read
        read += 1
        slots = -(-read // BLOCK) * BLOCK
        seen = state | narrow_rings(split_rings(state)[0], slots) if narrow else state
        out: Output = model(ids_B[:, None], seen)
        # Rings are written in place, and what comes back are views of their first slots.
        state = {name: x if is_ring(name) else out.state[name] for name, x in state.items()}
        return model.head.logits(out.hidden_BTD[:, -1])

    return step


class Learner:
    """Reads lanes and, after each chunk, takes one step down the gradient of its mean loss.

    A token is predicted with weights that have seen nothing but tokens of earlier chunks.
    """

    def __init__(self, model: LanguageModel, lanes: int, length: int, learning: Learning) -> None:
        self._model, self._chunk, self._length = model, learning.chunk, length
        self._parameters: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
        self._before = [each.detach().clone() for each in self._parameters]
        self._optimizer = learning.optimizer(self._parameters)
        self._begin, self._read = model.initial_state(lanes), 0
        self._inputs = list[Tensor]()
        self._step = self._open_steps(lanes)

    def _open_steps(self, lanes: int) -> Callable[[Tensor], Tensor]:
        return open_steps(self._model, lanes, self._length, self._begin, self._read)

    def read(self, ids_B: Tensor) -> Tensor:
        """Read a token per lane, after an update if a chunk is full, and return the logits."""
        if len(self._inputs) == self._chunk:
            self._update_(torch.stack([*self._inputs, ids_B], dim=1))
            self._step = self._open_steps(len(ids_B))
        self._inputs.append(ids_B)
        self._read += 1
        return self._step(ids_B)

    @torch.enable_grad()
    def _update_(self, read_BT: Tensor) -> None:
        """Read the chunk once more, as a whole, and learn from it."""
        out: Output = self._model(read_BT[:, :-1], self._begin)
        nats_BT = self._model.head.nats(out.hidden_BTD, read_BT[:, 1:])
        gradients = torch.autograd.grad(nats_BT.mean(), self._parameters, allow_unused=True)
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
        torch.nn.utils.clip_grad_norm_(self._parameters, MAX_NORM)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._model.after_step()
        self._begin = {name: each.detach() for name, each in out.state.items()}
        self._inputs.clear()

    @torch.no_grad()
    def undo_(self) -> None:
        """Restore the weights exactly."""
        torch._foreach_copy_(self._parameters, self._before)
        self._optimizer.zero_grad()
        self._model.after_step()


def _to_array(logits_BV: Tensor) -> npt.NDArray[np.float64]:
    return logits_BV.double().cpu().numpy()
