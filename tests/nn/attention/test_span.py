"""Learned spans as a module: formula, range, trimming."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparing.nn.attention.span import AdaptiveSpan, DynamicSpan, group_heads_by_window
from sparing.ops.span_attention import Ramp, soft_mask


def test_scores_become_weights_within_the_span() -> None:
    torch.manual_seed(0)
    span = AdaptiveSpan(2, 10, ramp=Ramp(3), start=0.25)
    scores_BHTS = torch.randn(3, 2, 4, 9)
    weights_BHTS, penalty = span(scores_BHTS)
    assert penalty.item() == 2.5
    torch.testing.assert_close(weights_BHTS.sum(-1), torch.ones(3, 2, 4))
    for t in range(4):
        distance_S = (5.0 + t) - torch.arange(9)
        mask_S = soft_mask(torch.tensor(2.5), distance_S, Ramp(3)) * (distance_S >= 0)
        share_S = scores_BHTS[1, 1, t].exp() * mask_S
        torch.testing.assert_close(weights_BHTS[1, 1, t], share_S / share_S.sum())


def test_both_sides_are_seen_without_causality() -> None:
    span = AdaptiveSpan(1, 10, ramp=Ramp(2), start=0.0)
    weights_BHTS, _ = span(torch.zeros(1, 1, 7, 7), causal=False)
    # Distances 0 and 1 in full, 2 by half.
    torch.testing.assert_close(weights_BHTS[0, 0, 3], torch.tensor([0, 0.5, 1, 1, 1, 0.5, 0]) / 4)


def test_spans_move_past_their_range_and_come_back_at_the_next_use() -> None:
    span = AdaptiveSpan(2, 100, start=0.5)
    optimizer = torch.optim.SGD(span.parameters(), lr=1.0)
    span.lengths()[0].backward()
    optimizer.step()
    assert span.ratio.tolist() == [-99.5, 0.5]
    assert span.lengths().tolist() == [0, 50]
    assert span.ratio.tolist() == [0, 0.5]
    # At the edge the gradient still counts: a head at 0 can grow again.
    optimizer.zero_grad()
    (-0.001 * span.lengths().sum()).backward()
    optimizer.step()
    assert span.lengths().tolist() == pytest.approx([10, 60])


def test_evaluation_reads_a_parameter_out_of_range_without_changing_it() -> None:
    span = AdaptiveSpan(2, 100).eval()
    span.ratio.data.copy_(torch.tensor([-0.5, 1.5]))
    assert span.lengths().tolist() == [0, 100]
    assert span.ratio.tolist() == [-0.5, 1.5]
    (gradient,) = torch.autograd.grad(span.lengths().sum(), span.ratio)
    assert gradient.tolist() == [100, 100]


def test_two_uses_before_one_backward_are_no_trouble() -> None:
    span = AdaptiveSpan(2, 10, ramp=Ramp(3), start=0.3)
    scores = torch.randn(1, 2, 4, 4)
    first, _ = span(scores)
    second, penalty = span(2 * scores)
    (first.square().sum() + second.square().sum() + penalty).backward()
    assert span.ratio.grad.abs().min() > 0


def test_kinds_of_spans() -> None:
    layer = AdaptiveSpan(3, 10, kind="layer", start=0.5)
    assert layer.ratio.shape == (1,)
    assert layer.lengths().tolist() == [5, 5, 5]
    fixed = AdaptiveSpan(3, 10, kind="fixed", start=1.0)
    assert not list(fixed.parameters())
    assert not fixed.state_dict()
    assert (fixed.lengths().tolist(), fixed.penalty().item()) == ([10, 10, 10], 0)
    assert copy.deepcopy(fixed).double().lengths().dtype == torch.float64
    for bad in ({"heads": 0}, {"limit": 0}, {"start": -0.1}):
        with pytest.raises(ValueError, match="positive"):
            AdaptiveSpan(**({"heads": 1, "limit": 1} | bad))


def test_reach_is_the_farthest_key_of_use() -> None:
    span = AdaptiveSpan(2, 100, ramp=Ramp(8))
    span.ratio.data.copy_(torch.tensor([0.05, 0.2]))
    assert span.reach() == 29
    span.ratio.data.fill_(1.0)
    assert span.reach() == 100


def test_dynamic_spans_start_short_and_differ_from_query_to_query() -> None:
    torch.manual_seed(0)
    span = DynamicSpan(6, 2, 1000)
    lengths_BHT = span.lengths(torch.randn(3, 5, 6))
    assert lengths_BHT.shape == (3, 2, 5)
    assert lengths_BHT.std() > 0
    assert span.lengths(torch.zeros(1, 1, 6)).flatten().tolist() == pytest.approx(
        [1000 / (1 + torch.e**4)] * 2
    )


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 9000), min_size=1, max_size=9), st.integers(1, 8192))
def test_groups_hold_every_head_once_in_a_window_not_much_too_wide(
    reaches: list[int], limit: int
) -> None:
    groups = group_heads_by_window(reaches, limit)
    assert sorted(head for _, heads in groups for head in heads) == list(range(len(reaches)))
    for width, heads in groups:
        for head in heads:
            assert min(reaches[head], limit) <= width <= limit
            assert width <= 1.25 * reaches[head] + 16
