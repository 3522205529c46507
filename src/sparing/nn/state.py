"""What a model carries from one segment to the next.

A state is a flat dict from names to tensors whose first axis is the lane. It can be saved,
exported, sent to other processes and split into lanes without knowing the model it belongs to.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

State = dict[str, Tensor]


def select_lanes(state: Mapping[str, Tensor], lanes: slice | Tensor) -> State:
    """Return the state of some lanes."""
    return {name: tensor[lanes] for name, tensor in state.items()}


def concat_lanes(states: Sequence[Mapping[str, Tensor]]) -> State:
    """Put the lanes of several states into one; shorter memories are padded in front."""
    result = State()
    for name, first in states[0].items():
        tensors = [state[name] for state in states]
        longest = max(tensor.size(1) for tensor in tensors) if first.ndim > 1 else 0
        result[name] = torch.cat([pad_length(tensor, longest) for tensor in tensors])
    return result


def pad_length(tensor: Tensor, length: int) -> Tensor:
    """Add zeros before the oldest entries of a state's tensor until it has `length` entries."""
    missing = length - tensor.size(1) if tensor.ndim > 1 else 0
    if missing <= 0:
        return tensor
    empty = tensor.new_zeros(tensor.size(0), missing, *tensor.shape[2:])
    return torch.cat([empty, tensor], dim=1)


def select_prefix(state: Mapping[str, Tensor], prefix: str) -> State:
    """Return the tensors whose names start with `prefix.`, without the prefix."""
    start = f"{prefix}."
    return {
        name.removeprefix(start): tensor for name, tensor in state.items() if name.startswith(start)
    }


def add_prefix(state: Mapping[str, Tensor], prefix: str) -> State:
    """Put `prefix.` in front of every name: the inverse of `select_prefix`."""
    return {f"{prefix}.{name}": tensor for name, tensor in state.items()}


def split_state(state: Mapping[str, Tensor], count: int) -> list[State]:
    """Return the states of blocks 0 to `count` - 1."""
    return [select_prefix(state, f"blocks.{block}") for block in range(count)]


def join_states(states: Sequence[Mapping[str, Tensor]]) -> State:
    """Put the states of all blocks into one: the inverse of `split_state`."""
    joined = State()
    for block, state in enumerate(states):
        joined |= add_prefix(state, f"blocks.{block}")
    return joined


def zero_lanes(state: Mapping[str, Tensor], lanes_B: Tensor) -> State:
    """Fill the selected lanes with zeros."""
    return {
        name: tensor.masked_fill(lanes_B.view(-1, *[1] * (tensor.ndim - 1)), 0)
        for name, tensor in state.items()
    }


def forget_lanes(memories: Mapping[str, Tensor], lanes_B: Tensor) -> State:
    """Mark the memories of the selected lanes as empty.

    No entry is written: `seen` holds how many positions each lane has read since its start, and so
    how many of the newest entries are valid. Without `seen` all of them are.
    """
    seen_B = memories.get("seen")
    if seen_B is None:
        longest = max(memory_BM.size(1) for memory_BM in memories.values())
        seen_B = torch.full_like(lanes_B, longest, dtype=torch.int64)
    return {**memories, "seen": seen_B.masked_fill(lanes_B, 0)}


def advance_seen(state: Mapping[str, Tensor], length: int) -> State:
    """Return `seen` after `length` more positions; empty if the state does not count them."""
    return {"seen": state["seen"] + length} if "seen" in state else {}


def size_bytes(state: Mapping[str, Tensor]) -> int:
    """Size of all tensors in bytes."""
    return sum(tensor.nbytes for tensor in state.values())
