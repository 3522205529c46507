"""Heads of different reach, projected apart, against all of them at once."""

import pytest
import torch

from sparing.nn.span_attention import SpanAttention
from sparing.ops.span_attention import Ramp

RAMP = Ramp(4)
SPANS = [0.0, 70.0, 3.5, 20.0]
REACHES = [RAMP.reach(span) for span in SPANS]


@pytest.mark.parametrize("persistent", [0, 3])
@pytest.mark.parametrize("by_query", [False, True])
def test_heads_may_go_separate_ways(persistent: int, by_query: bool) -> None:
    torch.manual_seed(0)
    brick = SpanAttention(16, 4, ramp=RAMP, persistent=persistent).double()
    source_BSD = torch.randn(2, 150, 16).double()
    hidden_BTD = source_BSD[:, -33:].clone().requires_grad_()
    position_KL = torch.randn(4, 100).double().requires_grad_()
    span = torch.tensor(SPANS).double()
    if by_query:
        span = (span[None, :, None] * torch.rand(2, 4, 33).double()).contiguous()
    span.requires_grad_()
    wanted = [hidden_BTD, position_KL, span, *brick.parameters()]
    answers = []
    for reaches in (REACHES, [max(REACHES)] * 4):
        out = brick(hidden_BTD, source_BSD, position_KL, span, reaches)
        answers.append((out, *torch.autograd.grad(out.square().sum(), wanted)))
    torch.testing.assert_close(answers[0], answers[1])


def test_keys_and_values_made_before_serve_as_well() -> None:
    torch.manual_seed(0)
    brick = SpanAttention(16, 4, ramp=RAMP).double()
    source_BSD, position_KL = torch.randn(2, 150, 16).double(), torch.randn(4, 100).double()
    span, hidden_BTD = torch.tensor(SPANS).double(), source_BSD[:, -5:]
    anew = brick(hidden_BTD, source_BSD, position_KL, span, REACHES)
    cached = (brick.key(source_BSD), brick.value(source_BSD))
    torch.testing.assert_close(brick(hidden_BTD, cached, position_KL, span, REACHES), anew)


def test_a_head_projects_no_more_than_it_sees() -> None:
    brick = SpanAttention(16, 4, ramp=RAMP)
    keys_BHSK, values_BHSK = brick.project(torch.randn(2, 150, 16), 20, [1, 3])
    assert keys_BHSK.shape == values_BHSK.shape == (2, 2, 20, 4)


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ValueError, match="multiple of heads"):
        SpanAttention(16, 3, ramp=RAMP)
