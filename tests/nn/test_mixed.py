"""Mixing weights: their sums, their noise, their gradients, their temperature."""

import math

import pytest
import torch
from tests.nn import block_laws as laws
from torch import Tensor

from sparing.nn.attention.relative import RelativeBlock
from sparing.nn.block import Block, Identity
from sparing.nn.feedforward import BoomBlock
from sparing.nn.mixed import (
    MixedBlock,
    Sampling,
    anneal,
    entropy,
    expected_cost,
    gumbel_noise,
    mixture,
)
from sparing.nn.recurrent_block import RecurrentBlock
from sparing.nn.state import State

LOGITS = torch.tensor([[1.0, 0.0, -1.0], [0.0, 0.5, 0.0]])


@pytest.mark.parametrize("sampling", ["soft", "straight-through", "single-path"])
def test_rows_sum_to_one(sampling: Sampling) -> None:
    torch.manual_seed(0)
    weights = mixture(LOGITS, gumbel_noise(LOGITS), 0.7, sampling)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2))
    if sampling != "soft":
        assert set(weights.flatten().round(decimals=6).tolist()) == {0.0, 1.0}


def test_samples_come_as_often_as_the_softmax_says() -> None:
    torch.manual_seed(0)
    many = LOGITS[:1].expand(20_000, 3)
    drawn = mixture(many, gumbel_noise(many), 0.1, "single-path").mean(0)
    torch.testing.assert_close(drawn, LOGITS[0].softmax(-1), atol=0.015, rtol=0)


def test_hard_samples_have_the_soft_gradient() -> None:
    noise = torch.tensor([[0.2, 0.1, 0.0], [0.0, 0.0, 0.3]])
    value = torch.tensor([1.0, -2.0, 0.5])

    def gradient(sampling: Sampling) -> torch.Tensor:
        logits = LOGITS.clone().requires_grad_()
        (mixture(logits, noise, 0.5, sampling) * value).sum().backward()
        assert logits.grad is not None
        return logits.grad

    torch.testing.assert_close(gradient("straight-through"), gradient("soft"))
    assert gradient("soft").abs().sum() > 0


def test_noise_is_finite_and_float32_whatever_the_logits_are() -> None:
    torch.manual_seed(0)
    noise = gumbel_noise(torch.zeros(1000, 1000, dtype=torch.float16))
    assert noise.dtype == torch.float32
    assert bool(noise.isfinite().all())
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.01)


def test_the_temperature_falls_in_equal_ratios() -> None:
    assert anneal(1.0, 0.1, 0.0) == 1
    assert anneal(2.0, 0.2, 0.5) == pytest.approx(math.sqrt(0.4))
    assert anneal(2.0, 0.2, 1.0) == pytest.approx(0.2)
    assert anneal(2.0, 0.2, 1.5) == pytest.approx(0.2)


def test_entropy_and_expected_cost() -> None:
    assert entropy(torch.zeros(4, 3)).item() == pytest.approx(math.log(3))
    assert entropy(torch.tensor([[100.0, 0.0]])).item() == pytest.approx(0, abs=1e-6)
    costs = torch.tensor([3.0, 1.0, 0.0])
    assert expected_cost(torch.zeros(6, 3), costs).item() == pytest.approx(8)


def slot() -> MixedBlock:
    candidates: dict[str, Block] = {
        "x": RelativeBlock(laws.DIM, 2, 4, memory=16, dropout=0.0),
        "l": RecurrentBlock(laws.DIM, core="lstm", dropout=0.0),
        "b": BoomBlock(laws.DIM, 2 * laws.DIM, dropout=0.0),
        "i": Identity(laws.DIM),
    }
    mixed = MixedBlock(laws.DIM, candidates)
    laws.lively(mixed)
    return mixed


def alone(mixed: MixedBlock, letter: str) -> Tensor:
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


def test_in_training_the_longest_memory_counts_and_later_that_of_the_favourite() -> None:
    mixed = slot().train()
    mixed.favourite = 1
    assert mixed.memory_length() == 16
    assert mixed.eval().memory_length() == 0
    mixed.favourite = 0
    assert mixed.memory_length() == 16


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
        mixed.favourite = number
        laws.the_future_is_invisible(mixed)
        laws.segments_do_not_change_the_answer(mixed)
        laws.a_full_state_is_as_large_as_promised(mixed)


def test_on_a_single_path_the_others_are_not_computed_but_stay_ready() -> None:
    mixed, called = slot(), []
    for letter, block in mixed.candidates.items():
        block.register_forward_hook(lambda *_, letter=letter: called.append(letter))
    weights = torch.tensor([0.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    mixed.steer(weights, 2)
    state = mixed.initial_state(2, laws.stream())
    state["l.cell"] += 1
    _, after = mixed(laws.stream(), state)
    assert called == ["b"]
    assert after.keys() == state.keys()
    torch.testing.assert_close(after["x.memory"], laws.stream())
    assert not after["l.cell"].any()


def test_penalties_are_weighted() -> None:
    class Dear(Identity):
        def penalty(self, like: Tensor) -> Tensor:
            return like + 2.0

        def forward(self, hidden_BTD: Tensor, state: State) -> tuple[Tensor, State]:
            return super().forward(hidden_BTD, state)

    mixed = MixedBlock(4, {"d": Dear(4), "i": Identity(4)})
    zero = torch.zeros(())
    mixed.steer(torch.tensor([0.25, 0.75]), None)
    assert mixed.penalty(zero).item() == 0.5
    mixed.steer(None, 0)
    assert mixed.penalty(zero).item() == 2.0
