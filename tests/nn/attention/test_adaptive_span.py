"""Heads of different reach, projected apart, against all of them at once."""

import pytest
import torch

from sparing.nn.attention.adaptive_span import AdaptiveSpanAttention, AdaptiveSpanLayer
from sparing.nn.attention.expire import ExpireAttention, ExpireSpan
from sparing.nn.attention.span import AdaptiveSpan, DynamicSpan
from sparing.nn.feedforward import feed_forward
from sparing.nn.state import State
from sparing.ops.span_attention import Ramp

RAMP = Ramp(4)
SPANS = [0.0, 70.0, 3.5, 20.0]
REACHES = [RAMP.reach(span) for span in SPANS]


@pytest.mark.parametrize("persistent", [0, 3])
@pytest.mark.parametrize("by_query", [False, True])
def test_heads_may_go_separate_ways(persistent: int, by_query: bool) -> None:
    torch.manual_seed(0)
    attention = AdaptiveSpanAttention(16, 4, ramp=RAMP, persistent=persistent).double()
    source_BSD = torch.randn(2, 150, 16).double()
    hidden_BTD = source_BSD[:, -33:].clone().requires_grad_()
    position_KL = torch.randn(4, 100).double().requires_grad_()
    span = torch.tensor(SPANS).double()
    if by_query:
        span = (span[None, :, None] * torch.rand(2, 4, 33).double()).contiguous()
    span.requires_grad_()
    wanted = [hidden_BTD, position_KL, span, *attention.parameters()]
    answers = []
    for reaches in (REACHES, [max(REACHES)] * 4):
        out = attention(hidden_BTD, source_BSD, position_KL, span, reaches)
        answers.append((out, *torch.autograd.grad(out.square().sum(), wanted)))
    torch.testing.assert_close(answers[0], answers[1])


def test_keys_and_values_made_before_serve_as_well() -> None:
    torch.manual_seed(0)
    attention = AdaptiveSpanAttention(16, 4, ramp=RAMP).double()
    source_BSD, position_KL = torch.randn(2, 150, 16).double(), torch.randn(4, 100).double()
    span, hidden_BTD = torch.tensor(SPANS).double(), source_BSD[:, -5:]
    projected = attention(hidden_BTD, source_BSD, position_KL, span, REACHES)
    cached = (attention.key(source_BSD), attention.value(source_BSD))
    torch.testing.assert_close(attention(hidden_BTD, cached, position_KL, span, REACHES), projected)


def test_a_head_projects_no_more_than_it_sees() -> None:
    attention = AdaptiveSpanAttention(16, 4, ramp=RAMP)
    keys_BHSK, values_BHSK = attention.project(torch.randn(2, 150, 16), 20, [1, 3])
    assert keys_BHSK.shape == values_BHSK.shape == (2, 2, 20, 4)


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ValueError, match="multiple of heads"):
        AdaptiveSpanAttention(16, 3, ramp=RAMP)


DIM, HEADS, LIMIT, EDGE = 8, 2, 200, Ramp(4, 1)


def layer(span: AdaptiveSpan | DynamicSpan, *, persistent: int = 0) -> AdaptiveSpanLayer:
    torch.manual_seed(0)
    attention = AdaptiveSpanAttention(DIM, HEADS, ramp=EDGE, persistent=persistent, zeros=False)
    feed = None if persistent else feed_forward(DIM, 12, dropout=0.0)
    return AdaptiveSpanLayer(DIM, LIMIT, span=span, attention=attention, feed=feed).eval()


def positions() -> torch.Tensor:
    return torch.randn(DIM // HEADS, LIMIT, generator=torch.Generator().manual_seed(1))


def empty(*names: str) -> State:
    return {name: torch.zeros(2, 0, DIM) for name in names}


def test_layer_inputs_and_keys_and_values_remember_the_same() -> None:
    text_BTD = torch.randn(2, 9, DIM)
    for known, span in (
        ([20.0, 20.0], AdaptiveSpan(HEADS, LIMIT, ramp=EDGE, start=0.1)),
        (None, DynamicSpan(DIM, HEADS, LIMIT)),
    ):
        one, found = layer(span), []
        for state in (empty("memory"), empty("keys", "values")):
            names, said = set(state), []
            for piece_BTD in text_BTD.split(4, dim=1):
                out_BTD, state, _ = one(piece_BTD, state, positions(), known)
                said.append(out_BTD)
            assert set(state) == names
            found.append(torch.cat(said, dim=1))
        whole_BTD, _, _ = one(text_BTD, empty("memory"), positions(), known)
        torch.testing.assert_close(found[0], whole_BTD)
        torch.testing.assert_close(found[1], whole_BTD)


def test_it_carries_as_much_as_its_longest_span_may_see() -> None:
    one = layer(AdaptiveSpan(HEADS, LIMIT, ramp=EDGE))
    assert one.cache(None) == LIMIT
    assert one.cache([1.0, 2.0]) < one.cache([1.0, 190.0]) == LIMIT
    _, state, _ = one(torch.randn(2, 250, DIM), empty("memory"), positions(), [1.0, 2.0])
    assert state["memory"].size(1) == one.cache([1.0, 2.0])


def test_the_penalty_is_its_mean_span() -> None:
    one = layer(AdaptiveSpan(HEADS, LIMIT, ramp=EDGE, start=0.25), persistent=3)
    assert one.feed is one.norm_feed is None
    _, _, cost = one(torch.randn(2, 3, DIM), empty("memory"), positions(), [50.0, 50.0])
    assert cost.item() == 50


def test_memories_that_expire_carry_their_age() -> None:
    attention = ExpireAttention(DIM, HEADS, span=ExpireSpan(DIM, LIMIT), ramp=4)
    one = AdaptiveSpanLayer(DIM, LIMIT, span=None, attention=attention, feed=None)
    state = {**empty("memory"), "age": torch.zeros(2, 0, dtype=torch.int64)}
    _, after, _ = one(torch.randn(2, 3, DIM), state, positions(), None)
    assert after["age"].tolist() == [[3, 2, 1]] * 2
