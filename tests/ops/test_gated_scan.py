"""The scan of QRNN: the parallel form against the loop, and the loop against a hand."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparing.ops.gated_scan import doubling, gated_scan, reference


def inputs(batch: int, segment: int, dim: int, seed: int = 0) -> tuple[Tensor, ...]:
    random = torch.Generator().manual_seed(seed)
    shape = (batch, segment, dim)
    forget = torch.rand(shape, generator=random, dtype=torch.float64)
    # Gates that are fully open or shut must be no special case.
    forget = torch.where(forget < 0.1, 0.0, torch.where(forget > 0.9, 1.0, forget))
    candidate = torch.randn(shape, generator=random, dtype=torch.float64)
    initial = torch.randn(batch, dim, generator=random, dtype=torch.float64)
    return tuple(tensor.requires_grad_() for tensor in (forget, candidate, initial))


def test_the_loop_is_the_recurrence_worked_by_hand() -> None:
    forget, candidate = (
        torch.tensor([[[0.5], [0.25], [1.0]]]),
        torch.tensor([[[4.0], [8.0], [9.0]]]),
    )
    cells = reference(forget, candidate, torch.tensor([[2.0]]))
    assert cells.flatten().tolist() == [3.0, 6.75, 6.75]


@settings(max_examples=60, deadline=None)
@given(
    batch=st.integers(1, 3), segment=st.integers(1, 37), dim=st.integers(1, 4), seed=st.integers(0)
)
def test_the_parallel_scan_equals_the_loop_with_all_gradients(
    batch: int, segment: int, dim: int, seed: int
) -> None:
    given_ = inputs(batch, segment, dim, seed % 2**31)
    outward = torch.randn(batch, segment, dim, dtype=torch.float64)
    found, expected = (scan(*given_) for scan in (doubling, reference))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    gradients = (torch.autograd.grad(cells, given_, outward) for cells in (found, expected))
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_gradients_agree_with_finite_differences() -> None:
    assert torch.autograd.gradcheck(doubling, inputs(2, 5, 2))


@pytest.mark.parametrize("segment", [1, 4, 5, 64])
def test_the_public_function_is_one_of_the_two(segment: int) -> None:
    given_ = inputs(2, segment, 3)
    torch.testing.assert_close(gated_scan(*given_), reference(*given_))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_errs_no_more_than_the_loop_does(dtype: torch.dtype) -> None:
    exact = inputs(2, 133, 5)
    given_ = tuple(tensor.detach().to(dtype) for tensor in exact)
    truth = reference(*(tensor.double() for tensor in given_))
    ours, theirs = ((scan(*given_).double() - truth).abs().max() for scan in (doubling, reference))
    assert ours <= 2 * theirs + torch.finfo(dtype).eps


def test_it_changes_none_of_its_inputs() -> None:
    given_ = [tensor.detach() for tensor in inputs(1, 9, 2)]
    before = [tensor.clone() for tensor in given_]
    doubling(*given_)
    for tensor, copy in zip(given_, before, strict=True):
        assert torch.equal(tensor, copy)
