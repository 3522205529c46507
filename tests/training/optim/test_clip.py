"""The global-norm clip against torch's own."""

import pytest
import torch
from torch import Tensor

from sparing.training.optim import clip, clip_


def parameters(factor: float = 1.0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    made = [torch.zeros(s, requires_grad=True) for s in [(4, 5), (7,), (2, 2)]]
    for p in made[:-1]:
        p.grad = torch.randn(p.shape, generator=generator) * factor
    return made


def gradients(given: list[Tensor]) -> list[Tensor]:
    return [p.grad for p in given if p.grad is not None]


@pytest.mark.parametrize("max_norm", [0.25, 1e6])
def test_it_equals_torch(max_norm: float) -> None:
    ours, theirs = parameters(), parameters()
    norm = clip_(iter(ours), max_norm)
    expected = torch.nn.utils.clip_grad_norm_(theirs, max_norm)
    torch.testing.assert_close(norm, expected)
    torch.testing.assert_close(gradients(ours), gradients(theirs))


def test_zero_only_measures() -> None:
    ours, untouched = parameters(), parameters()
    norm = clip_(ours, 0.0)
    assert norm.shape == ()
    assert torch.equal(norm, torch.nn.utils.get_total_norm(gradients(untouched)))
    assert all(map(torch.equal, gradients(ours), gradients(untouched)))


@pytest.mark.parametrize("max_norm", [0.0, 0.25, 1e6])
def test_the_scale_of_the_loss_is_taken_out_first(max_norm: float) -> None:
    scaled, plain = parameters(1024.0), parameters()
    norm = clip_(scaled, max_norm, scale=1024.0)
    torch.testing.assert_close(norm, clip_(plain, max_norm))
    torch.testing.assert_close(gradients(scaled), gradients(plain))


def test_without_gradients_the_norm_is_zero() -> None:
    assert float(clip_([torch.ones(3)], 1.0)) == 0.0


def test_a_gradient_that_is_not_finite_shows_in_the_norm() -> None:
    given = parameters()
    gradients(given)[0][0, 0] = torch.nan
    assert torch.isnan(clip_(given, 1.0))


@pytest.mark.parametrize("odd", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("max_norm", [0.0, 1.0])
def test_gradients_that_are_not_finite_become_zeros(odd: float, max_norm: float) -> None:
    given = parameters()
    gradients(given)[0][0, 0] = odd
    clip_(given, max_norm)
    assert all(not gradient.any() for gradient in gradients(given))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_what_no_host_may_ask_is_decided_bit_by_bit(dtype: torch.dtype) -> None:
    given = [torch.tensor([torch.nan, torch.inf, -2.5, 1e-30]).to(dtype), torch.ones(2, 3).mT]
    kept = [gradient.clone() for gradient in given]
    clip._zero_unless_(kept, torch.tensor(True))
    torch.testing.assert_close(kept, given, rtol=0, atol=0, equal_nan=True)
    clip._zero_unless_(kept, torch.tensor(False))
    assert all(not gradient.any() for gradient in kept)


def test_no_value_is_asked_of_the_device() -> None:
    p = torch.ones(3, device="meta", requires_grad=True)
    p.grad = torch.ones_like(p)
    assert clip_([p], 1.0, scale=2.0).is_meta
