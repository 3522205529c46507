"""Reading until the memories of a model are full."""

from collections.abc import Iterable

from torch import Tensor

from sparing.models.api import LanguageModel, Output, State


def fill_memory(
    model: LanguageModel, segments: Iterable[Tensor], state: State
) -> tuple[State, int]:
    """Read segments (B, T) until every memory is full, or none are left.

    Return the state and the number of positions read, from `state` on.
    """
    length, read = model.memory_length(), 0
    for tokens_BT in segments:
        if read >= length:
            break
        out: Output = model(tokens_BT, state)
        state, read = out.state, read + tokens_BT.size(1)
    return state, read
