"""The model behind an engine: texts are read one by one, and written side by side in lanes.

Axes: B lanes, T tokens, D dim, V vocabulary.
"""

import copy
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from sparing.lm import LM
from sparing.models.api import LanguageModel, Output, State, concat_lanes, select_lanes
from sparing.serve.requests import Ids


class Lanes(Protocol):
    """Texts that are written side by side, one token each per step."""

    def join(self, lane: int, state: State) -> None:
        """Go on from `state` in a lane; what it held before is lost."""

    def leave(self, lane: int) -> None:
        """Nothing more is written in a lane."""

    def step(self, ids_B: Ids) -> Tensor:
        """Read one token per lane, whatever it is where nothing is written; logits (B, V)."""


class PromptReader:
    """Reads texts in chunks. States are values: each can be gone on from as often as wanted."""

    def __init__(self, lm: LM) -> None:
        self.lm, self.model = lm, _with_buffers_of_its_own(lm.model)

    def begin(self) -> State:
        """The state before the first token."""
        return self.model.initial_state(1, inference=True)

    def read(self, ids: Ids, state: State) -> tuple[Tensor, State]:
        """Return the last layer (T, D) at each of these tokens, and the state after them."""
        out: Output = self.model(torch.from_numpy(ids).to(self.model.device)[None], state)
        return out.hidden_BTD[0], out.state

    def logits(self, hidden_XD: Tensor) -> Tensor:
        """Return logits in at least float32."""
        logits_XV = self.model.head.logits(hidden_XD)
        return logits_XV.float() if logits_XV.element_size() < 4 else logits_XV


def open_lanes(reader: PromptReader, count: int) -> Lanes:
    """Lanes that suit the model: in one batch where its state has the same shape at any length."""
    before = reader.begin()
    _, after = reader.read(np.array([reader.lm.vocab.start] * 3), before)
    growing = any(before[name].shape != tensor.shape for name, tensor in after.items())
    return SeparateLanes(reader, count) if growing else JointLanes(reader, count)


class JointLanes:
    """One batch that always has the same shape, so that a text does not depend on the others.

    Lanes that nothing is written in are computed and ignored.
    """

    def __init__(self, reader: PromptReader, count: int) -> None:
        self._reader, self._model = reader, _with_buffers_of_its_own(reader.lm.model)
        self._state = self._model.initial_state(count, inference=True)
        self._empty = select_lanes(self._state, slice(0, 1))
        self._empty = {name: tensor.clone() for name, tensor in self._empty.items()}

    def join(self, lane: int, state: State) -> None:
        """See `Lanes`."""
        for name, tensor in self._state.items():
            # In place: a state put together anew would be copied by the model's own buffers.
            tensor[lane].copy_(state[name][0])

    def leave(self, lane: int) -> None:
        """See `Lanes`. An empty memory costs less to attend to."""
        self.join(lane, self._empty)

    def step(self, ids_B: Ids) -> Tensor:
        """See `Lanes`."""
        tokens_B1 = torch.from_numpy(ids_B).to(self._model.device)[:, None]
        out: Output = self._model(tokens_B1, self._state)
        self._state = out.state
        return self._reader.logits(out.hidden_BTD[:, -1])


class SeparateLanes:
    """A batch of one for each lane, for states that grow with the text and cannot be stacked."""

    def __init__(self, reader: PromptReader, count: int) -> None:
        self._reader = reader
        self._states: list[State | None] = [None] * count
        self._vocab_size = reader.lm.vocab.size

    def join(self, lane: int, state: State) -> None:
        """See `Lanes`."""
        self._states[lane] = concat_lanes([state])

    def leave(self, lane: int) -> None:
        """See `Lanes`."""
        self._states[lane] = None

    def step(self, ids_B: Ids) -> Tensor:
        """See `Lanes`."""
        rows = list[Tensor]()
        for lane, state in enumerate(self._states):
            if state is None:
                rows.append(torch.zeros(self._vocab_size))
                continue
            hidden_TD, self._states[lane] = self._reader.read(ids_B[lane : lane + 1], state)
            rows.append(self._reader.logits(hidden_TD[-1]))
        return torch.stack([row.to(rows[-1].device) for row in rows])


def _with_buffers_of_its_own(model: LanguageModel) -> LanguageModel:
    """A copy that shares the weights. Memories are appended in place by one reader at a time."""
    shared = [*model.parameters(), *model.buffers()]
    return copy.deepcopy(model, {id(tensor): tensor for tensor in shared})
