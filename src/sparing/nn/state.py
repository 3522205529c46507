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


def size_bytes(state: Mapping[str, Tensor]) -> int:
    """Bytes the state holds."""
    return sum(tensor.nbytes for tensor in state.values())
