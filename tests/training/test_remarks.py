"""What a training says before its first step."""

import pytest
import torch
from tests.training.toy import CPU, budget, toy_training

from sparing.training import remarks as module
from sparing.training.capture import capture_weights, start_second_pass
from sparing.training.optim import freeze_others
from sparing.training.remarks import estimate_step_s, remarks
from sparing.training.state import Training


def said(training: Training, *, resumed: bool = False, **settings: object) -> list[str]:
    return list(remarks(training, budget(**settings), resumed=resumed))


def test_a_small_training_starts_without_a_word() -> None:
    assert said(toy_training()) == said(toy_training(), resumed=True) == []


def test_a_training_of_some_parameters_says_how_many() -> None:
    training = toy_training()
    freeze_others(training.model, ("head.*",))
    total = sum(parameter.numel() for parameter in training.model.parameters())
    assert said(training) == [f"training 7 of {total:,} parameters"]


@pytest.mark.parametrize(
    ("settings", "step", "more"),
    [
        ({"steps": 8}, 8, "8 steps; to train on, set a larger total, such as train.steps=16"),
        ({"steps": 1}, 1, "1 step; to train on, set a larger total, such as train.steps=2"),
        ({"steps": None, "minutes": 0.5}, 9, "such as train.minutes=1"),
        # Of several budgets, the one that is used up.
        ({"steps": 14, "minutes": 0.5}, 9, "such as train.minutes=1"),
        ({"steps": 9, "minutes": 0.6}, 9, "such as train.steps=18"),
    ],
)
def test_a_finished_run_says_so_and_how_to_train_on(
    settings: dict[str, object], step: int, more: str
) -> None:
    training = toy_training()
    training.counters.step, training.counters.elapsed_s = step, 31.0
    (line,) = said(training, resumed=True, **settings)
    assert line.startswith("the run is finished: ")
    assert line.endswith(more)


def test_a_second_pass_says_what_starts_anew() -> None:
    training = toy_training()
    training.counters.step = 7
    start_second_pass(training, capture_weights(training))
    (line,) = said(training, resumed=True)
    assert "second pass from step 7" in line
    assert "optimizer state and schedule start anew" in line


def test_a_slow_step_is_announced_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    training = toy_training()
    needed = 3 * training.model.flops_per_token() * 4 * 6
    for seconds, shown in ((19, None), (45, "45 s"), (600, "10 min"), (36_000, "10 h")):
        rate = needed / seconds
        monkeypatch.setattr(module, "matmul_flops_per_s", lambda hardware, rate=rate: rate)
        assert estimate_step_s(training, budget()) == pytest.approx(seconds)
        lines = said(training)
        assert bool(lines) == bool(shown)
        assert all(f"a step takes {shown} or more on this CPU" in line for line in lines)


def test_the_estimate_draws_no_random_number() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    assert 1e6 < module.matmul_flops_per_s(CPU) < 1e15
    assert torch.equal(torch.get_rng_state(), before)
