"""What a model carries from one segment to the next.

A state is a flat dict from names to tensors whose first axis is the lane. So it is saved, exported,
dealt to other processes and cut into lanes without knowing the model it belongs to.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

State = dict[str, Tensor]


def lanes(state: Mapping[str, Tensor], chosen: slice | Tensor) -> State:
    """The state of some lanes."""
    return {name: tensor[chosen] for name, tensor in state.items()}


def joined(states: Sequence[Mapping[str, Tensor]]) -> State:
    """Several states side by side; a memory shorter than the longest gets empty places in front."""
    found = State()
    for name, first in states[0].items():
        tensors = [state[name] for state in states]
        longest = max(tensor.size(1) for tensor in tensors) if first.ndim > 1 else 0
        found[name] = torch.cat([lengthened(tensor, longest) for tensor in tensors])
    return found


def lengthened(tensor: Tensor, length: int) -> Tensor:
    """A state's tensor with zeros before its oldest entries, so that there are `length` of them."""
    missing = length - tensor.size(1) if tensor.ndim > 1 else 0
    if missing <= 0:
        return tensor
    empty = tensor.new_zeros(tensor.size(0), missing, *tensor.shape[2:])
    return torch.cat([empty, tensor], dim=1)


def part(state: Mapping[str, Tensor], owner: str) -> State:
    """What a state holds for one owner, under the owner's own names."""
    prefix = f"{owner}."
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in state.items()
        if name.startswith(prefix)
    }


def owned(own: Mapping[str, Tensor], owner: str) -> State:
    """The inverse of `part`: one owner's tensors under the names they have in the whole."""
    return {f"{owner}.{name}": tensor for name, tensor in own.items()}


def zeroed(state: Mapping[str, Tensor], lanes_B: Tensor) -> State:
    """The state with zeros in the chosen lanes."""
    return {
        name: tensor.masked_fill(lanes_B.view(-1, *[1] * (tensor.ndim - 1)), 0)
        for name, tensor in state.items()
    }


def emptied(memories: Mapping[str, Tensor], lanes_B: Tensor) -> State:
    """The same memories, of which nothing exists any more in the chosen lanes.

    No entry is touched: `seen` says how many positions each lane has read since it began, and so
    how many of the newest entries exist. Where nobody has counted yet, all of them do.
    """
    seen_B = memories.get("seen")
    if seen_B is None:
        longest = max(memory_BM.size(1) for memory_BM in memories.values())
        seen_B = torch.full_like(lanes_B, longest, dtype=torch.int64)
    return {**memories, "seen": seen_B.masked_fill(lanes_B, 0)}


def counted(state: Mapping[str, Tensor], length: int) -> State:
    """`seen` after `length` more positions, where it is counted."""
    return {"seen": state["seen"] + length} if "seen" in state else {}


def size_bytes(state: Mapping[str, Tensor]) -> int:
    """Bytes the state holds."""
    return sum(tensor.nbytes for tensor in state.values())
