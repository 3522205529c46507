"""Dropout: rate, scale, gradient, reproducibility."""

import pytest
import torch

from sparing.nn.dropout import Dropout
from sparing.ops.dropout import dropout


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_the_rate_is_met_and_the_mean_kept(rate: float) -> None:
    torch.manual_seed(0)
    y = dropout(torch.ones(400, 1001), rate)
    gone = (y == 0).float().mean().item()
    assert gone == pytest.approx(rate, abs=0.003)
    assert torch.allclose(y[y != 0], torch.tensor(1 / (1 - rate)))


def test_neighbours_rows_and_bits_of_a_word_are_independent() -> None:
    torch.manual_seed(0)
    gone = (dropout(torch.ones(500, 1000), 0.5) == 0).double() - 0.5
    for shift in range(1, 9):
        assert abs((gone[:, shift:] * gone[:, :-shift]).mean().item()) < 0.002
    assert abs((gone[1:] * gone[:-1]).mean().item()) < 0.002
    assert (gone.view(-1, 4).mean(0).abs() < 0.005).all()


def test_the_gradient_passes_where_the_number_did() -> None:
    x = torch.randn(5, 7, requires_grad=True)
    y = dropout(x, 0.4)
    y.sum().backward()
    torch.testing.assert_close(x.grad * x, y)


def test_evaluation_and_a_rate_of_zero_leave_it_alone() -> None:
    x = torch.randn(3, 3)
    assert Dropout(0.0)(x) is x
    assert Dropout(0.5).eval()(x) is x


def test_the_seed_decides_and_dtype_and_layout_are_kept() -> None:
    x = torch.randn(6, 4, dtype=torch.bfloat16).T
    torch.manual_seed(3)
    one = dropout(x, 0.5)
    torch.manual_seed(3)
    assert torch.equal(one, dropout(x, 0.5))
    assert one.dtype == torch.bfloat16


def test_a_rate_outside_the_range_is_refused() -> None:
    with pytest.raises(ValueError, match="dropout rate"):
        Dropout(1.0)
