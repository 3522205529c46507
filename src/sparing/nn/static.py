"""States of fixed shapes: filled from carried ones, cropped while a text is short, grown again.

Axes: B batch, M memory, R slots, H heads, K head width, E heads x head width, X any.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from sparing.nn.ring import GRAIN, PREFIX, is_ring, write_ring
from sparing.nn.state import State


def fill_static(empty: Mapping[str, Tensor], carried: Mapping[str, Tensor]) -> State | None:
    """Return a static state that goes on where a carried one stands; `empty` is written in place.

    None where the carried memory holds other things than the rings, and would have to be projected.
    """
    filled = State()
    for name, tensor in empty.items():
        prefix, ringed, ring = name.partition(PREFIX)
        owner = prefix if ringed else name.removesuffix("seen")
        memory_BMX = _memory(carried, owner)
        if ringed:
            entries = _entries(ring, dict(_rings(empty, prefix)), carried, prefix)
            if entries is None or memory_BMX is None:
                return None
            seen_B = _seen(carried, owner, memory_BMX)
            count = min(tensor.size(-2), entries.size(-2), int(seen_B.max()))
            newest = entries[..., entries.size(-2) - count :, :]
            filled[name] = write_ring(tensor, newest, seen_B - count)
        elif name.endswith("seen") and memory_BMX is not None:
            filled[name] = _seen(carried, owner, memory_BMX).clone()
        else:
            filled[name] = carried[name].clone()
    return filled


def crop_rings(state: Mapping[str, Tensor], positions: int) -> State:
    """Return a copy with rings that are no longer than texts of that many positions need.

    Nothing may have been written beyond them.
    """
    slots = -(-positions // GRAIN) * GRAIN
    return {
        name: tensor[..., :slots, :].contiguous() if is_ring(name) else tensor
        for name, tensor in state.items()
    }


def grow_rings(state: Mapping[str, Tensor], empty: Mapping[str, Tensor]) -> State:
    """Return a copy of a state with cropped rings that has the rings of `empty`."""
    grown = {**state}
    for name, tensor in state.items():
        if is_ring(name):
            grown[name] = empty[name].clone()
            grown[name][..., : tensor.size(-2), :] = tensor
    return grown


def _rings(state: Mapping[str, Tensor], prefix: str) -> Iterator[tuple[str, Tensor]]:
    start = prefix + PREFIX
    for name, tensor in state.items():
        if name.startswith(start):
            yield name.removeprefix(start), tensor


def _memory(carried: Mapping[str, Tensor], prefix: str) -> Tensor | None:
    """A memory of a block, whose second axis counts its positions."""
    for name in ("entries", "keys", "memory"):
        if prefix + name in carried:
            return carried[prefix + name]
    return None


def _seen(carried: Mapping[str, Tensor], prefix: str, memory_BMX: Tensor) -> Tensor:
    """The positions that each lane has read; where nobody counts them, all of memory is valid."""
    if prefix + "seen" in carried:
        return carried[prefix + "seen"]
    batch, positions = memory_BMX.shape[:2]
    return torch.full((batch,), positions, device=memory_BMX.device)


def _entries(
    ring: str, rings: Mapping[str, Tensor], carried: Mapping[str, Tensor], prefix: str
) -> Tensor | None:
    """The memory that a ring replaces (B, X, M, K), oldest first."""
    number, _, kind = ring.rpartition(".")
    if not number:
        return carried.get(prefix + ring)
    if prefix + "entries" in carried:
        memory_BMHK = carried[prefix + "entries"][:, :, 0 if kind == "keys" else 1]
    elif prefix + kind in carried:
        memory_BMHK = carried[prefix + kind].unflatten(-1, (-1, rings[ring].size(-1)))  # type: ignore[no-untyped-call]  # torch has no types for it
    else:
        return None
    first = sum(rings[f"{each}.{kind}"].size(1) for each in range(int(number)))
    return memory_BMHK[:, :, first : first + rings[ring].size(1)].transpose(1, 2)
