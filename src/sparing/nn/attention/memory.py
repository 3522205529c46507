"""The memory of an attention layer: hidden states, or the keys and values projected from them.

Hidden states are projected again in every segment, so that keys follow the weights: for training.
Keys and values are projected once: for inference, where weights do not change. The caller of
`initial_state` chooses (`inference`); from then on the names in the state tell which it is.
Axes: B batch, T segment, M memory, S = M + T keys, D dim, E width of keys and values, X any.
"""

from collections.abc import Mapping
from typing import Literal

from torch import Tensor

from sparing.nn.kv_buffer import append, newest
from sparing.nn.state import State, advance_seen

CacheKind = Literal["auto", "hidden", "kv"]
"""What memory holds: hidden states, keys and values, or (`auto`) the latter for inference only."""


def memory_widths(cache: CacheKind, dim: int, entry_dim: int, *, inference: bool) -> dict[str, int]:
    """Return the names and widths of the tensors that a memory is made of."""
    if cache == "kv" or (cache == "auto" and inference):
        return {"keys": entry_dim, "values": entry_dim}
    return {"memory": dim}


def empty_memory(widths: Mapping[str, int], batch: int, like: Tensor) -> State:
    """Return a memory without entries."""
    return {name: like.new_zeros(batch, 0, width) for name, width in widths.items()}


def holds_hidden(state: Mapping[str, Tensor]) -> bool:
    """Whether a layer's memory holds hidden states rather than keys and values."""
    return "memory" in state


def extend_memory(state: Mapping[str, Tensor], fresh: Mapping[str, Tensor]) -> State:
    """Append a segment's entries to a memory of the same kind."""
    return {name: append(state[name], fresh_BTX) for name, fresh_BTX in fresh.items()}


def trim_memory(
    stored: Mapping[str, Tensor], size: int, before: Mapping[str, Tensor], segment: int
) -> State:
    """Return the state to carry: the newest `size` entries, detached, and `seen` if counted."""
    kept = {name: newest(stored_BSX, size).detach() for name, stored_BSX in stored.items()}
    return kept | advance_seen(before, segment)


def copy_trimmed_memory(
    stored: Mapping[str, Tensor], size: int, before: Mapping[str, Tensor], segment: int
) -> State:
    """As `trim_memory`, but views would keep all entries alive, and be compiled for separately."""
    trimmed = trim_memory(stored, size, before, segment)
    return {name: tensor.contiguous() for name, tensor in trimmed.items()}
