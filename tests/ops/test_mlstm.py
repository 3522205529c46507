"""The multiplicative LSTM: definition by hand, and the written-out gradient against autograd."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparing.ops.mlstm import MLSTMInputs, batched, mlstm, reference


def inputs(batch: int, segment: int, dim: int, seed: int = 0) -> MLSTMInputs:
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64).requires_grad_()

    mask = (torch.rand(batch, dim, generator=random) < 0.7).double() / 0.7
    return MLSTMInputs(
        normal(batch, segment, dim),
        normal(batch, segment, 4 * dim),
        normal(dim, dim),
        normal(4 * dim, dim),
        normal(batch, dim),
        normal(batch, dim),
        mask,
    )


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_the_loop_is_the_formula_worked_by_hand() -> None:
    number = [torch.tensor(x, dtype=torch.float64) for x in (0.5, 0.25, -0.3)]
    given_ = MLSTMInputs(
        number[0].view(1, 1, 1),
        torch.tensor([0.1, 0.2, 0.3, 0.4]).double().view(1, 1, 4),
        torch.tensor([[2.0]]).double(),
        torch.tensor([[1.0], [-1.0], [0.5], [3.0]]).double(),
        number[1].view(1, 1),
        number[2].view(1, 1),
        torch.tensor([[1.5]]).double(),
    )
    middle = 0.5 * 2 * 0.25
    cell = sigmoid(0.2 - middle) * -0.3 + sigmoid(0.1 + middle) * math.tanh(0.4 + 3 * middle)
    hidden = 1.5 * sigmoid(0.3 + 0.5 * middle) * math.tanh(cell)
    for scan in (reference, batched):
        hiddens, last = scan(*given_)
        assert hiddens.item() == pytest.approx(hidden)
        assert last.item() == pytest.approx(cell)


@settings(max_examples=30, deadline=None)
@given(
    batch=st.integers(1, 3), segment=st.integers(1, 9), dim=st.integers(1, 4), seed=st.integers(0)
)
def test_the_written_out_gradient_is_autograds(
    batch: int, segment: int, dim: int, seed: int
) -> None:
    given_ = inputs(batch, segment, dim, seed % 2**31)
    outward = [torch.randn(batch, segment, dim).double(), torch.randn(batch, dim).double()]
    results = [scan(*given_) for scan in (batched, reference)]
    gradients = [torch.autograd.grad(result, given_[:6], outward) for result in results]
    for ours, theirs in zip(
        (*results[0], *gradients[0]), (*results[1], *gradients[1]), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_gradients_agree_with_finite_differences() -> None:
    assert torch.autograd.gradcheck(batched, tuple(inputs(2, 3, 2)))


def test_low_precision_weights_cost_no_more_than_in_the_loop() -> None:
    exact = [tensor.detach().float().requires_grad_() for tensor in inputs(3, 12, 8)]
    exact[6] = exact[6].detach()
    low = [*exact[:2], *(tensor.to(torch.bfloat16) for tensor in exact[2:4]), *exact[4:]]
    truth, _ = reference(*exact)
    truth_gradient = torch.autograd.grad(truth.sum(), exact[3])[0]
    errors = []
    for scan in (batched, reference):
        with torch.autocast("cpu", torch.bfloat16):
            found, cell = scan(*low)
        assert cell.dtype == found.dtype == torch.float32
        gradient = torch.autograd.grad(found.sum(), exact[3])[0]
        errors.append([(found - truth).norm().item(), (gradient - truth_gradient).norm().item()])
    assert all(ours <= 2 * theirs for ours, theirs in zip(*errors, strict=True))


def test_without_gradients_it_is_the_definition() -> None:
    given_ = inputs(2, 4, 3)
    with torch.no_grad():
        torch.testing.assert_close(mlstm(given_), reference(*given_), rtol=0, atol=0)
    torch.testing.assert_close(mlstm(given_), reference(*given_))
