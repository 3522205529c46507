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
    """Several states side by side; their memories must be equally long."""
    return {name: torch.cat([state[name] for state in states]) for name in states[0]}


def size_bytes(state: Mapping[str, Tensor]) -> int:
    """Bytes the state holds."""
    return sum(tensor.nbytes for tensor in state.values())
