"""A layer of spans: what it carries and what it asks for."""

import torch

from sparing.nn.expire import ExpireAttention, ExpireSpan
from sparing.nn.feedforward import feed_forward
from sparing.nn.span import AdaptiveSpan, DynamicSpan
from sparing.nn.span_attention import SpanAttention
from sparing.nn.span_layer import SpanLayer
from sparing.nn.state import State
from sparing.ops.span_attention import Ramp

DIM, HEADS, LIMIT, EDGE = 8, 2, 200, Ramp(4, 1)


def layer(span: AdaptiveSpan | DynamicSpan, *, persistent: int = 0) -> SpanLayer:
    torch.manual_seed(0)
    attention = SpanAttention(DIM, HEADS, ramp=EDGE, persistent=persistent, zeros=False)
    feed = None if persistent else feed_forward(DIM, 12, dropout=0.0)
    return SpanLayer(DIM, LIMIT, span=span, attention=attention, feed=feed).eval()


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


def test_it_asks_for_its_mean_span() -> None:
    one = layer(AdaptiveSpan(HEADS, LIMIT, ramp=EDGE, start=0.25), persistent=3)
    assert one.feed is one.norm_feed is None
    _, _, cost = one(torch.randn(2, 3, DIM), empty("memory"), positions(), [50.0, 50.0])
    assert cost.item() == 50


def test_memories_that_expire_carry_their_age() -> None:
    attention = ExpireAttention(DIM, HEADS, span=ExpireSpan(DIM, LIMIT), ramp=4)
    one = SpanLayer(DIM, LIMIT, span=None, attention=attention, feed=None)
    state = {**empty("memory"), "age": torch.zeros(2, 0, dtype=torch.int64)}
    _, after, _ = one(torch.randn(2, 3, DIM), state, positions(), None)
    assert after["age"].tolist() == [[3, 2, 1]] * 2
