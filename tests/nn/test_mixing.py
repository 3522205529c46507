"""Mixing weights: their sums, their noise, their gradients, their temperature."""

import math

import pytest
import torch

from sparing.nn.mixing import (
    Sampling,
    annealed,
    entropy,
    expected_cost,
    gumbel_noise,
    mixture,
)

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
    assert annealed(1.0, 0.1, 0.0) == 1
    assert annealed(2.0, 0.2, 0.5) == pytest.approx(math.sqrt(0.4))
    assert annealed(2.0, 0.2, 1.0) == pytest.approx(0.2)
    assert annealed(2.0, 0.2, 1.5) == pytest.approx(0.2)


def test_entropy_and_expected_cost() -> None:
    assert entropy(torch.zeros(4, 3)).item() == pytest.approx(math.log(3))
    assert entropy(torch.tensor([[100.0, 0.0]])).item() == pytest.approx(0, abs=1e-6)
    costs = torch.tensor([3.0, 1.0, 0.0])
    assert expected_cost(torch.zeros(6, 3), costs).item() == pytest.approx(8)
