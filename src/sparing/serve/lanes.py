"""The model behind an engine: lanes that read a text in chunks, or write one together.

The lanes of a batch are of any age, and each is computed in the same way whatever the others hold:
the batch always has the same shape, and rings are read in blocks of the same size. Axes: B lanes,
T tokens, D dim, V vocabulary, R slots.
"""

import copy
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sparing.lm import LM
from sparing.models.api import LanguageModel, Output, State, narrow_rings, size_bytes, split_rings
from sparing.serve.requests import Ids

BLOCK = 512
"""Slots by which the part of the rings grows that is attended to. Sums over slots are made in
blocks that divide it, so that empty slots after those of a lane change nothing."""


class LaneState(NamedTuple):
    """What a lane holds, without the slots that it has not reached. It never changes."""

    read: int
    state: State

    @property
    def nbytes(self) -> int:
        """Its size."""
        return size_bytes(self.state)


class Lanes:
    """A batch of texts, each read or written on its own."""

    def __init__(self, lm: LM, count: int, chunk: int) -> None:
        self.lm, self.count, self.chunk = lm, count, chunk
        self._model = lm.model
        self.reset()
        self._slots = max((ring.size(-2) for ring in self._rings.values()), default=0)
        self._narrow = self._slots > BLOCK and _is_narrowable(self._model, chunk)

    def reset(self) -> None:
        """Be as when new, whatever the lanes hold, in no more memory than that of new ones."""
        self._rings = self._rest = self._empty = State()
        self._reading = dict[int, State]()
        self.lm.hardware.empty_cache()
        state = self._model.static_state(self.count, chunk=self.chunk)
        self._counts = sorted(name for name in state if name.rpartition(".")[2] == "seen")
        # Rings are shared by all; the rest of a lane that reads is kept apart until it writes.
        self._rings, self._rest = split_rings(state)
        self._empty = {name: tensor[:1].clone() for name, tensor in self._rest.items()}
        self._read = [0] * self.count
        self._used = [0] * self.count
        """First slots of each lane that may hold something."""

    def begin(self, lane: int) -> None:
        """Be as before the first token."""
        self._read[lane] = 0
        self._reading[lane] = self._empty
        self._clear(lane)

    def read(self, lane: int, ids: Ids) -> Tensor:
        """Read at most `chunk` tokens; return the last layer (T, D) at each of them."""
        rings = {name: ring[lane : lane + 1] for name, ring in self._rings.items()}
        state = self._state(rings, self._reading[lane], [self._read[lane]], len(ids))
        tokens_1T = torch.from_numpy(ids).to(self._model.device)[None]
        # Before the model writes: it may fail when a part is written.
        self._used[lane] = max(self._used[lane], self._read[lane] + len(ids))
        out: Output = self._model(tokens_1T, state)
        self._reading[lane] = split_rings(out.state)[1]
        self._read[lane] += len(ids)
        return out.hidden_BTD[0]

    def write(self, lane: int) -> None:
        """All is read: take part in every step from now on."""
        for name, tensor in self._reading.pop(lane).items():
            whole = self._rest[name] = self._rest[name].clone()
            whole[lane] = tensor[0]

    def step(self, ids: dict[int, int]) -> Tensor:
        """Read one more token in some lanes; return logits (B, V), of use for these lanes only.

        The others are computed as well; what that writes is written over or cleared later.
        """
        ids_B = np.full(self.count, self.lm.vocab.start, dtype=np.int64)
        ids_B[list(ids)] = list(ids.values())
        state = self._state(self._rings, self._rest, self._read, 1)
        self._used = [
            max(used, read + 1) for used, read in zip(self._used, self._read, strict=True)
        ]
        out: Output = self._model(torch.from_numpy(ids_B).to(self._model.device)[:, None], state)
        self._rest = split_rings(out.state)[1]
        for lane in ids:
            self._read[lane] += 1
        return self.logits(out.hidden_BTD[:, -1])

    def leave(self, lane: int) -> None:
        """The text is over."""
        self._reading.pop(lane, None)
        self._read[lane] = 0

    def keep(self, lane: int) -> LaneState:
        """Copy what a lane holds that reads."""
        read = self._read[lane]
        rings = {name: ring[lane : lane + 1] for name, ring in self._rings.items()}
        if self._narrow:
            rings = narrow_rings(rings, read)
        return LaneState(
            read, {k: v.clone() for k, v in [*rings.items(), *self._reading[lane].items()]}
        )

    def restore(self, lane: int, kept: LaneState) -> None:
        """Be as when it was kept."""
        self._clear(lane)
        rings, self._reading[lane] = split_rings(kept.state)
        self._read[lane] = self._used[lane] = kept.read
        for name, ring in rings.items():
            self._rings[name][lane, ..., : ring.size(-2), :] = ring[0]

    def _clear(self, lane: int) -> None:
        """Fill with zeros what earlier texts have left: some models attend to empty slots."""
        for ring in self._rings.values():
            ring[lane, ..., : self._used[lane], :].zero_()
        self._used[lane] = 0

    def logits(self, hidden_XD: Tensor) -> Tensor:
        """Return logits in at least float32."""
        logits_XV = self._model.head.logits(hidden_XD)
        return logits_XV.float() if logits_XV.element_size() < 4 else logits_XV

    def _state(self, rings: State, rest: State, read: Iterable[int], more: int) -> State:
        """Put a state together, with the slots that `more` tokens will have reached."""
        seen_B = torch.tensor(list(read), dtype=torch.int64)
        if self._narrow:
            reached = int(seen_B.max()) + more
            rings = narrow_rings(rings, -(-reached // BLOCK) * BLOCK)
        seen_B = seen_B.to(self._model.device)
        # A step may count on in place.
        return {**rings, **rest, **{name: seen_B.clone() for name in self._counts}}


def _is_narrowable(model: LanguageModel, chunk: int) -> bool:
    """Whether slots that no lane has reached may be left out: some models attend to them."""
    tokens_1T = torch.zeros(1, min(chunk, BLOCK - 1), dtype=torch.int64, device=model.device)
    # The first token of a text attends to the slot before it, which is zero however long a ring is.
    first: Output = model(tokens_1T[:, :1], model.static_state(1, chunk=chunk))
    found = list[Tensor]()
    for value in (0.0, 1.0):
        state = {name: tensor.clone() for name, tensor in first.state.items()}
        for ring in split_rings(state)[0].values():
            ring[..., BLOCK:, :] = value
        out: Output = model(tokens_1T, state)
        found.append(out.hidden_BTD)
    return torch.equal(*found)


class AttentionReader:
    """Reads a text to show attention weights; slower than `Lanes`, with its own state."""

    def __init__(self, lm: LM) -> None:
        self.lm, self._model = lm, _with_buffers_of_its_own(lm.model)

    def read(self, ids: Ids, state: State | None) -> State:
        """Return the state after these tokens."""
        if state is None:
            state = self._model.initial_state(1, inference=True)
        out: Output = self._model(torch.from_numpy(ids).to(self._model.device)[None], state)
        return out.state

    def look(self, id: int, state: State) -> dict[int, Tensor]:
        """Return the weights (H, S) of each layer at one more token."""
        token_11 = torch.tensor([[id]], device=self._model.device)
        found = self.lm.attention_weights(token_11, state)
        return {layer: weights_1HTS[0, :, -1] for layer, weights_1HTS in found.items()}


def _with_buffers_of_its_own(model: LanguageModel) -> LanguageModel:
    """A copy that shares the weights. Memories are appended in place by one reader at a time."""
    shared = [*model.parameters(), *model.buffers()]
    return copy.deepcopy(model, {id(tensor): tensor for tensor in shared})
