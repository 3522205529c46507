"""A slot: mixing, choosing, and who carries what."""

import torch
from tests.nn.blocks import laws
from torch import Tensor

from sparing.nn.blocks.api import Block, Identity
from sparing.nn.blocks.boom import BoomBlock
from sparing.nn.blocks.mixed import Mixed
from sparing.nn.blocks.recurrent import RecurrentBlock
from sparing.nn.blocks.relative import RelativeBlock
from sparing.nn.state import State


def slot() -> Mixed:
    candidates: dict[str, Block] = {
        "x": RelativeBlock(laws.DIM, 2, 4, memory=16, dropout=0.0),
        "l": RecurrentBlock(laws.DIM, core="lstm", dropout=0.0),
        "b": BoomBlock(laws.DIM, 2 * laws.DIM, dropout=0.0),
        "i": Identity(laws.DIM),
    }
    mixed = Mixed(laws.DIM, candidates)
    laws.lively(mixed)
    return mixed


def alone(mixed: Mixed, letter: str) -> Tensor:
    block = mixed.candidates[letter]
    assert isinstance(block, Block)
    return laws.read(block, laws.stream(), 6)[0]


def test_mixed_it_is_the_weighted_sum() -> None:
    mixed, weights = slot(), torch.tensor([0.5, 0.25, 0.125, 0.125], dtype=torch.float64)
    mixed.steer(weights, None)
    found, _ = laws.read(mixed, laws.stream(), 6)
    wanted = sum(w * alone(mixed, x) for w, x in zip(weights, "xlbi", strict=True))
    torch.testing.assert_close(found, wanted)
    laws.every_parameter_gets_a_gradient(mixed)


def test_chosen_it_is_that_candidate_and_carries_nothing_else() -> None:
    mixed = slot()
    for number, letter in enumerate("xlbi"):
        mixed.steer(None, number)
        found, state = laws.read(mixed, laws.stream(), 6)
        torch.testing.assert_close(found, alone(mixed, letter), rtol=0, atol=0)
        assert {name.partition(".")[0] for name in state} <= {letter}


def test_chosen_it_obeys_the_laws() -> None:
    for number in range(3):
        mixed = slot()
        mixed.steer(None, number)
        laws.the_future_is_invisible(mixed)
        laws.segments_do_not_change_the_answer(mixed)
        laws.a_full_state_is_as_large_as_promised(mixed)


def test_on_a_single_path_the_others_are_not_computed_but_stay_ready() -> None:
    mixed, asked = slot(), []
    for letter, block in mixed.candidates.items():
        block.register_forward_hook(lambda *_, letter=letter: asked.append(letter))
    weights = torch.tensor([0.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    mixed.steer(weights, 2)
    state = mixed.initial_state(2, laws.stream())
    state["l.cell"] += 1
    _, after = mixed(laws.stream(), state)
    assert asked == ["b"]
    assert after.keys() == state.keys()
    torch.testing.assert_close(after["x.memory"], laws.stream())
    assert not after["l.cell"].any()


def test_penalties_are_asked_by_weight() -> None:
    class Dear(Identity):
        def penalty(self, like: Tensor) -> Tensor:
            return like + 2.0

        def forward(self, hidden_BTD: Tensor, state: State) -> tuple[Tensor, State]:
            return super().forward(hidden_BTD, state)

    mixed = Mixed(4, {"d": Dear(4), "i": Identity(4)})
    zero = torch.zeros(())
    mixed.steer(torch.tensor([0.25, 0.75]), None)
    assert mixed.penalty(zero).item() == 0.5
    mixed.steer(None, 0)
    assert mixed.penalty(zero).item() == 2.0
