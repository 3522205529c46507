"""Dropout: rate, scale, gradient, reproducibility."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import sparing
from sparing.nn.dropout import Dropout
from sparing.ops.dropout import dropout, hash_mask


def hashed(x: Tensor, rate: float) -> Tensor:
    """What compiled code does on a GPU."""
    return x * hash_mask(x, rate)


every_form = pytest.mark.parametrize("form", [dropout, hashed])


@every_form
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_the_rate_is_met_and_the_mean_kept(form, rate: float) -> None:
    torch.manual_seed(0)
    y = form(torch.ones(400, 1001), rate)
    gone = (y == 0).float().mean().item()
    assert gone == pytest.approx(rate, abs=0.003)
    assert torch.allclose(y[y != 0], torch.tensor(1 / (1 - rate)))


@every_form
def test_neighbours_rows_and_bits_of_a_word_are_independent(form) -> None:
    torch.manual_seed(0)
    gone = (form(torch.ones(500, 1000), 0.5) == 0).double() - 0.5
    for shift in range(1, 9):
        assert abs((gone[:, shift:] * gone[:, :-shift]).mean().item()) < 0.002
    assert abs((gone[1:] * gone[:-1]).mean().item()) < 0.002
    assert (gone.view(-1, 4).mean(0).abs() < 0.005).all()


@every_form
def test_masks_of_two_calls_are_independent(form) -> None:
    torch.manual_seed(0)
    one, two = ((form(torch.ones(1000, 1000), 0.5) == 0).double() - 0.5 for _ in range(2))
    assert abs((one * two).mean().item()) < 0.001


@every_form
def test_the_gradient_passes_where_the_number_did(form) -> None:
    x = torch.randn(5, 7, requires_grad=True)
    y = form(x, 0.4)
    y.sum().backward()
    torch.testing.assert_close(x.grad * x, y)


def test_evaluation_and_a_rate_of_zero_leave_it_alone() -> None:
    x = torch.randn(3, 3)
    assert Dropout(0.0)(x) is x
    assert Dropout(0.5).eval()(x) is x


@every_form
def test_the_seed_decides_and_dtype_and_layout_are_kept(form) -> None:
    x = torch.randn(6, 4, dtype=torch.bfloat16).T
    torch.manual_seed(3)
    one = form(x, 0.5)
    torch.manual_seed(3)
    assert torch.equal(one, form(x, 0.5))
    assert one.dtype == torch.bfloat16


def test_a_rate_just_below_one_drops_everything() -> None:
    assert not hash_mask(torch.ones(1000), 1 - 1e-11).any()


def test_a_rate_outside_the_range_is_refused() -> None:
    with pytest.raises(ValueError, match="dropout rate"):
        Dropout(1.0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore")
def test_compiled_code_on_a_gpu_drops_the_same_numbers_in_both_passes() -> None:
    x = torch.randn(64, 4096, device="cuda", requires_grad=True)
    y = torch.compile(dropout)(x, 0.25)
    y.sum().backward()
    assert (y == 0).float().mean().item() == pytest.approx(0.25, abs=0.005)
    torch.testing.assert_close(x.grad * x, y)


@pytest.mark.parametrize("drop", [dropout, hashed])
def test_rates_just_below_one_leave_almost_nothing(drop: Callable[[Tensor, float], Tensor]) -> None:
    torch.manual_seed(0)
    assert (drop(torch.ones(100_000), 1 - 2**-18) > 0).float().mean() < 1e-3


def test_no_other_dropout_is_used() -> None:
    source = Path(sparing.__file__).parent
    own = {"ops/dropout.py", "ops/span_attention/reference.py"}
    others = re.compile(r"\b(F|functional|nn)\.[Dd]ropout\(")
    found = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if others.search(path.read_text(encoding="utf-8"))
    }
    assert found == own
