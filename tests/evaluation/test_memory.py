"""Memories are filled with what there is to read, and no further."""

import torch
from tests.models.tiny import VOCAB, tiny
from torch import Tensor

from sparing.evaluation.memory import fill_memory
from sparing.models.api import State


def pieces(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(VOCAB, (2, 7), generator=generator) for _ in range(count)]


@torch.no_grad()
def test_it_reads_whole_segments_until_the_memory_is_full() -> None:
    model, segments = tiny("transformer_xl"), pieces(20)
    state, read = fill_memory(model, segments, model.initial_state(2))
    assert read == 70 >= model.memory_length() > 63
    wanted = model.initial_state(2)
    for tokens_BT in segments[:10]:
        wanted = model(tokens_BT, wanted).state
    assert state.keys() == wanted.keys()
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in state.items())


@torch.no_grad()
def test_it_stops_where_the_text_ends() -> None:
    model = tiny("transformer_xl")
    assert fill_memory(model, pieces(3), model.initial_state(2))[1] == 21


def test_a_model_without_a_memory_reads_nothing() -> None:
    model, empty = tiny("mlstm"), State()
    assert fill_memory(model, pieces(3), empty) == (empty, 0)
