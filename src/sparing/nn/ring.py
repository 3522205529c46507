"""Memories of fixed size: ring buffers, written in place and read by distance.

Position p of a lane is in slot p modulo the ring's length. A ring as long as a window and the
longest segment together still holds all that a segment looks back to once the segment is written.
Axes: B batch, T segment, R slots, H heads, K head width, X any.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from sparing.nn.state import State

PREFIX = "ring."
"""What the names of rings start with, below the prefix of their block."""
RING = "ring.memory"
"""The one ring of a layer that attends with a single head, or whose heads share what they see."""
GRAIN = 16
"""Rings of learned length are cut to multiples of this, so that vector instructions fit."""


class HeadRing(NamedTuple):
    """Keys and values of heads that look equally far back."""

    heads: slice
    keys_BHRK: Tensor
    values_BHRK: Tensor


def is_static(state: Mapping[str, Tensor]) -> bool:
    """Whether the memories of a state, of one block or of a model, are rings."""
    return any(is_ring(name) for name in state)


def is_ring(name: str) -> bool:
    """Whether the tensor of this name in a static state is a ring."""
    return PREFIX in name


def ring_length(window: int, chunk: int) -> int:
    """Slots for `window` positions before those of a segment of at most `chunk`."""
    return -(-(window + chunk) // GRAIN) * GRAIN


def empty_ring(dim: int, slots: int, batch: int, like: Tensor) -> State:
    """Return one ring of vectors, and the positions that each lane has read."""
    return {RING: like.new_zeros(batch, slots, dim), **no_positions(batch, like)}


def no_positions(batch: int, like: Tensor) -> State:
    """Return the count of positions that each lane has read: none."""
    return {"seen": torch.zeros(batch, dtype=torch.int64, device=like.device)}


def empty_head_rings(slots_H: Sequence[int], head_dim: int, batch: int, like: Tensor) -> State:
    """Return rings of these lengths; consecutive heads with equally many slots share one."""
    state = no_positions(batch, like)
    for number, (slots, heads) in enumerate(groupby(slots_H)):
        shape = (batch, len(list(heads)), slots, head_dim)
        for name in ("keys", "values"):
            state[f"{PREFIX}{number}.{name}"] = like.new_zeros(shape)
    return state


def write_head_rings(state: Mapping[str, Tensor], keys_BTHK: Tensor, values_BTHK: Tensor) -> State:
    """Write a segment into the rings of all heads, in place, and return them."""
    rings, first, seen_B = State(), 0, state["seen"]
    for name, ring_BHRK in state.items():
        if name.startswith(PREFIX) and name.endswith(".keys"):
            heads = slice(first, first := first + ring_BHRK.size(1))
            twin = name.removesuffix("keys") + "values"
            rings[name] = write_ring(ring_BHRK, keys_BTHK[:, :, heads].transpose(1, 2), seen_B)
            rings[twin] = write_ring(state[twin], values_BTHK[:, :, heads].transpose(1, 2), seen_B)
    return rings


def head_rings(rings: Mapping[str, Tensor]) -> Iterator[HeadRing]:
    """Yield the rings of a layer with the heads they belong to."""
    first = 0
    for name, keys_BHRK in rings.items():
        if name.startswith(PREFIX) and name.endswith(".keys"):
            heads = slice(first, first := first + keys_BHRK.size(1))
            yield HeadRing(heads, keys_BHRK, rings[name.removesuffix("keys") + "values"])


def write_ring(ring_BXRK: Tensor, fresh_BXTK: Tensor, seen_B: Tensor) -> Tensor:
    """Write entries of positions `seen`, `seen` + 1, ... in place; return the ring."""
    segment, slots = fresh_BXTK.size(-2), ring_BXRK.size(-2)
    slot_BT = (seen_B[:, None] + torch.arange(segment, device=seen_B.device)) % slots
    among = (1,) * (ring_BXRK.ndim - 3)
    slot_BXTK = slot_BT.view(slot_BT.size(0), *among, segment, 1).expand_as(fresh_BXTK)
    return ring_BXRK.scatter_(-2, slot_BXTK, fresh_BXTK.detach().to(ring_BXRK.dtype))


def write_and_mask(
    state: Mapping[str, Tensor], fresh_BTD: Tensor, memory: int
) -> tuple[State, Tensor]:
    """Write a segment into a layer's one ring; return its next state and which slots are unseen.

    Queries see `memory` positions before the segment, and those of it up to their own.
    """
    seen_B, segment = state["seen"], fresh_BTD.size(1)
    ring_BRD = write_ring(state[RING], fresh_BTD, seen_B)
    distance_BTR = ring_distances(seen_B, segment, ring_BRD.size(1))
    after = {RING: ring_BRD, "seen": seen_B + segment}
    return after, outside_memory(distance_BTR, seen_B, memory)


def ring_distances(seen_B: Tensor, segment: int, slots: int) -> Tensor:
    """Return how far behind each query (B, T, R) the position in each slot is.

    The segment starts at position `seen` and is written already. Later positions are at negative
    distances; slots that nothing was written to are at those from before the lane's first token.
    """
    newest_B1 = (seen_B[:, None] + (segment - 1)) % slots
    behind_BR = newest_B1 - torch.arange(slots, device=seen_B.device)
    behind_BR = torch.where(behind_BR < 0, behind_BR + slots, behind_BR)
    return behind_BR[:, None] - torch.arange(segment - 1, -1, -1, device=seen_B.device)[:, None]


def before_first(distance_BTR: Tensor, seen_B: Tensor) -> Tensor:
    """Return which slots (B, T, R) were never written to since the lane's first token."""
    own_T1 = torch.arange(distance_BTR.size(1), device=seen_B.device)[:, None]
    return distance_BTR > seen_B[:, None, None] + own_T1


def outside_memory(distance_BTR: Tensor, seen_B: Tensor, memory: int) -> Tensor:
    """Return which slots (B, T, R) are not among `memory` positions before the segment or in it.

    Later positions of the segment are not, and neither are slots that were never written to.
    """
    own_T1 = torch.arange(distance_BTR.size(1), device=seen_B.device)[:, None]
    farthest_BT1 = torch.minimum(own_T1 + memory, seen_B[:, None, None] + own_T1)
    return (distance_BTR < 0) | (distance_BTR > farthest_BT1)


def split_rings(state: Mapping[str, Tensor]) -> tuple[State, State]:
    """Return the rings of a state, which are written in place, and all else but `seen`."""
    rings = {name: tensor for name, tensor in state.items() if is_ring(name)}
    return rings, {
        name: tensor
        for name, tensor in state.items()
        if name not in rings and name.rpartition(".")[2] != "seen"
    }


def narrow_rings(rings: Mapping[str, Tensor], slots: int) -> State:
    """Return views of the first slots of rings in which no lane has reached a later one."""
    return {name: ring_BXRK[..., :slots, :] for name, ring_BXRK in rings.items()}
