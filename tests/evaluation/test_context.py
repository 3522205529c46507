"""Loss against context, compared with brute force."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparing.errors import UserError
from sparing.evaluation.context import context_buckets, context_curve
from sparing.evaluation.window import evenly_spaced_windows


@given(length=st.integers(1, 3000))
def test_buckets_cover_every_context_once_and_grow(length: int) -> None:
    ranges = context_buckets(length)
    assert [at for low, high in ranges for at in range(low, high + 1)] == list(range(1, length + 1))
    sizes = [high - low + 1 for low, high in ranges[:-1]]
    assert sizes == sorted(sizes)


def test_the_first_buckets_hold_one_distance_each() -> None:
    assert context_buckets(10) == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 6), (7, 8), (9, 10)]


@pytest.mark.parametrize(("batch", "segment"), [(1, 7), (3, 4), (8, 100)])
def test_the_curve_is_the_mean_loss_at_each_distance_from_a_fresh_state(
    tiny, split, cpu, batch: int, segment: int
) -> None:
    model, text = tiny(), split(40)
    curve = context_curve(model, text, cpu, length=12, windows=5, batch=batch, segment=segment)
    losses = []
    for window in evenly_spaced_windows(40, 12, 5):
        ids = torch.from_numpy(text.ids[window.begin - 1 : window.end]).long()[None]
        with torch.no_grad():
            out = model.eval()(ids[:, :-1], model.initial_state(1))
            losses.append(model.head.nats(out.hidden_BTD, ids[:, 1:])[0])
    loss_T = torch.stack(losses).mean(0)
    assert [(point.low, point.high) for point in curve] == context_buckets(12)
    for point in curve:
        mean = loss_T[point.low - 1 : point.high].mean().item()
        assert point.nats_per_token == pytest.approx(mean, rel=1e-12)
        assert point.bits_per_byte == pytest.approx(mean / math.log(2) / 2, rel=1e-12)
        assert point.count == 5 * (point.high - point.low + 1)


def test_a_context_longer_than_the_split_is_refused(tiny, split, cpu) -> None:
    with pytest.raises(UserError, match="at most 19"):
        context_curve(tiny(), split(20), cpu, length=20)
    with pytest.raises(UserError, match="segment 0"):
        context_curve(tiny(), split(20), cpu, length=2, segment=0)
