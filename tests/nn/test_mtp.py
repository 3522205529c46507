"""Multi-token prediction."""

import math

import pytest
import torch

from sparing.nn.mtp import MultiTokenPrediction


def test_at_first_every_token_costs_log_v() -> None:
    tokens = torch.randint(7, (2, 10))
    nats = MultiTokenPrediction(4, 7, 2)(torch.randn(2, 10, 4), tokens)
    # Of ten positions eight know the second token after theirs, and seven the third.
    assert nats.item() == pytest.approx((8 + 7) / 10 * math.log(7), rel=1e-6)


def test_the_vector_at_t_predicts_what_comes_after_the_next() -> None:
    tokens = torch.tensor([[3, 1, 4, 1, 5]])
    mtp, hidden = MultiTokenPrediction(7, 7, 1), torch.zeros(1, 5, 7)
    for place in range(3):
        hidden[0, place, tokens[0, place + 2]] = 1.0
    with torch.no_grad():
        mtp.tables[0].weight.copy_(50 * torch.eye(7))
    assert mtp(hidden, tokens).item() == pytest.approx(0.0, abs=1e-6)


def test_a_short_segment_predicts_nothing() -> None:
    assert (
        MultiTokenPrediction(4, 7, 3)(torch.randn(2, 1, 4), torch.zeros(2, 1, dtype=torch.long))
        == 0
    )
