"""States are cut, joined and measured without knowing the model."""

import torch

from sparing.nn.state import (
    add_prefix,
    advance_seen,
    concat_lanes,
    forget_lanes,
    select_lanes,
    select_prefix,
    size_bytes,
    zero_lanes,
)


def test_cutting_into_lanes_and_joining_is_the_identity() -> None:
    state = {"cell": torch.randn(4, 3), "memory": torch.randn(4, 2, 3)}
    pieces = [select_lanes(state, slice(0, 1)), select_lanes(state, slice(1, 4))]
    back = concat_lanes(pieces)
    assert all(torch.equal(back[name], state[name]) for name in state)
    chosen = select_lanes(state, torch.tensor([2, 0]))
    assert torch.equal(chosen["cell"], state["cell"][[2, 0]])


def test_shorter_memories_get_empty_places_before_their_oldest_entry() -> None:
    short, long = torch.ones(1, 1, 2), torch.ones(2, 3, 2)
    ages = [torch.tensor([[7]]), torch.tensor([[9, 8, 7]] * 2)]
    back = concat_lanes([{"m": short, "age": ages[0]}, {"m": long, "age": ages[1]}])
    assert back["age"].tolist() == [[0, 0, 7], [9, 8, 7], [9, 8, 7]]
    assert back["m"].sum((1, 2)).tolist() == [2, 6, 6]
    assert back["m"][0, -1].tolist() == [1, 1]


def test_what_an_owner_puts_into_the_whole_is_what_it_finds_there() -> None:
    first, second = {"cell": torch.randn(2, 3), "x.seen": torch.ones(2)}, {"cell": torch.zeros(2)}
    whole = add_prefix(first, "blocks.1") | add_prefix(second, "blocks.10")
    assert list(whole) == ["blocks.1.cell", "blocks.1.x.seen", "blocks.10.cell"]
    for owner, own in (("blocks.1", first), ("blocks.10", second)):
        back = select_prefix(whole, owner)
        assert list(back) == list(own)
        assert all(back[name] is own[name] for name in own)


def test_emptied_memories_are_counted_from_then_on() -> None:
    first, memories = torch.tensor([True, False]), {"keys": torch.ones(2, 5, 3)}
    assert advance_seen(memories, 4) == {}
    reset = forget_lanes(memories, first)
    assert reset["seen"].tolist() == [0, 5]
    later = reset | advance_seen(reset, 4)
    assert forget_lanes(later, ~first)["seen"].tolist() == [4, 0]


def test_zeroed_lanes_hold_zeros_whatever_their_shape() -> None:
    state = {"cell": torch.ones(2, 3), "memory": torch.ones(2, 2, 3), "age": torch.ones(2).long()}
    reset = zero_lanes(state, torch.tensor([True, False]))
    assert [tensor[0].any().item() for tensor in reset.values()] == [False] * 3
    assert [tensor[1].all().item() for tensor in reset.values()] == [True] * 3


def test_size_counts_bytes() -> None:
    assert size_bytes({"a": torch.zeros(2, 3), "b": torch.zeros(2, dtype=torch.float16)}) == 28
