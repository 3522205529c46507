"""Attention with learned spans as a block."""

import math

import pytest
import torch
from tests.nn import block_laws as laws

from sparing.nn.attention import window_heads as module
from sparing.nn.attention.span_refresh import SpanRefresh
from sparing.nn.attention.windowed import GRAIN, WindowedAttentionBlock


def attention(**settings: object) -> WindowedAttentionBlock:
    usual = {"limit": 64, "starts": (3.5, 20.25), "ramp": 4, "span_penalty": 1e-3}
    return WindowedAttentionBlock(laws.DIM, 2, 4, **(usual | settings))


def test_it_obeys_the_laws() -> None:
    laws.everything(attention())


def test_gates_obey_them_too_and_are_open_at_first() -> None:
    laws.everything(attention(gated=True))
    gated, plain = attention(gated=True), attention()
    plain.load_state_dict(gated.state_dict(), strict=False)
    for block in (gated, plain):
        torch.nn.init.normal_(
            block.attend.output.weight, generator=torch.Generator().manual_seed(1)
        )
    hidden = laws.stream().float()
    found, wanted = (b(hidden, b.initial_state(2, hidden))[0] for b in (gated, plain))
    torch.testing.assert_close(found, wanted)
    assert wanted.abs().max() > 0.1


def test_a_shut_gate_lets_nothing_through() -> None:
    block = laws.lively(attention(gated=True))
    with torch.no_grad():
        block.attend.gate.weight.zero_()
        # Of the two heads the second reads a channel that says no.
        block.attend.gate.weight[1, 0] = -1e4
        block.attend.output.weight[:, :4] = 0
    hidden = laws.stream()
    hidden[..., 0] = hidden[..., 0].abs() + 1
    assert block(hidden, block.initial_state(2, hidden))[0].abs().max() < 1e-6


def test_the_scale_of_the_stream_does_not_matter() -> None:
    block, hidden = laws.lively(attention(gated=True)), laws.stream()
    quiet, loud = (laws.read(block, scale * hidden, 6)[0] for scale in (1, 10))
    torch.testing.assert_close(loud, quiet)


def test_shifted_keys_obey_them_too() -> None:
    laws.everything(attention(key_shift=True))


def finder(**settings: object) -> WindowedAttentionBlock:
    """One head that looks for its own letter (hidden is one-hot), whatever the distance."""
    block = WindowedAttentionBlock(8, 1, 8, limit=64, starts=(32,), **settings)
    with torch.no_grad():
        block.attend.entries.weight.copy_(torch.eye(8).repeat(3, 1))
        block.attend.output.weight.copy_(torch.eye(8))
        block.attend.gain_H.fill_(20.0)
        block.attend.rotary.cosine_PF.fill_(1.0)
        block.attend.rotary.sine_PF.fill_(0.0)
    return block


@pytest.mark.parametrize("cut", [0, 1, 2, 3])
def test_with_shifted_keys_one_look_finds_what_came_next(cut: int) -> None:
    text = torch.nn.functional.one_hot(torch.tensor([[3, 5, 1, 3]]), 8).float()
    found = {}
    for shifted in (False, True):
        block = finder(key_shift=shifted)
        state = block.initial_state(1, text)
        for piece in (text[:, :cut], text[:, cut:]):
            if piece.size(1):
                delta, state = block(piece, state)
        found[shifted] = int(delta[0, -1].argmax())
    assert found == {False: 3, True: 5}


def test_a_reset_lane_has_no_pending_key() -> None:
    block = laws.lively(attention(key_shift=True))
    hidden = laws.stream()
    state = block.initial_state(2, hidden)
    after = block(hidden, state)[1]
    reset = block.reset_lanes(after, torch.tensor([True, False]))
    assert reset["key"][0].abs().max() == 0
    assert torch.equal(reset["key"][1], after["key"][1])
    assert after["key"][1].abs().max() > 0


def test_spans_stay_between_nothing_and_the_limit() -> None:
    block = attention()
    with torch.no_grad():
        block.log_span.copy_(torch.tensor([-1.0, 50.0]))
    assert block.spans().tolist() == pytest.approx([0.0, 64.0], rel=1e-5)
    block.after_step()
    assert block.log_span.tolist() == pytest.approx([0.0, math.log1p(64)])


def test_a_span_beyond_its_limit_can_come_back() -> None:
    block = attention()
    with torch.no_grad():
        block.log_span.fill_(50.0)
    block.spans().sum().backward()
    assert block.log_span.grad is not None
    assert (block.log_span.grad > 0).all()


def test_the_penalty_is_that_of_the_mean_span() -> None:
    block, zero = attention(), torch.zeros(())
    assert block.penalty(zero).item() == pytest.approx(1e-3 * (3.5 + 20.25) / 2)
    assert attention(span_penalty=0.0).penalty(zero) is zero


def test_memory_reaches_as_far_as_the_ramp() -> None:
    # One grain would do for the span, but not for what fades out behind it.
    block = laws.lively(attention(limit=250, starts=(250.0,), ramp=32))
    with torch.no_grad():
        block.log_span.fill_(math.log1p(250))
    whole, cut = (laws.read(block, laws.stream(1, 900), size)[0] for size in (900, 50))
    torch.testing.assert_close(cut, whole)


def test_a_window_may_grow_and_shrink_under_carried_state() -> None:
    block = attention(limit=2000, starts=(10.0, 300.0)).double()
    hidden = laws.stream(1, 12)
    state = block.initial_state(1, hidden)
    assert state["entries"].size(1) == 2 * GRAIN
    for span, window in ((1000.0, 2 * GRAIN + 12), (5.0, GRAIN)):
        with torch.no_grad():
            block.log_span.fill_(math.log1p(span))
        SpanRefresh([block]).finish()
        delta, state = block(hidden, state)
        assert delta.isfinite().all()
        assert state["entries"].size(1) == window
    assert state["seen"].tolist() == [24]


def test_keys_before_the_text_are_ignored() -> None:
    block = laws.lively(attention())
    hidden = laws.stream(1, 6)
    state = block.initial_state(1, hidden)
    poisoned = state | {"entries": torch.full_like(state["entries"], 1e3)}
    torch.testing.assert_close(block(hidden, poisoned)[0], block(hidden, state)[0])


def test_a_reset_does_not_copy_the_memory() -> None:
    block, hidden = laws.lively(attention()), laws.stream()
    _, state = laws.read(block, hidden, 4)
    reset = block.reset_lanes(state, torch.tensor([True, False]))
    assert reset["entries"] is state["entries"]
    after = block(hidden[:, :2], reset)[1]
    # Written behind the old entries, not copied together with them.
    place = state["entries"].untyped_storage().data_ptr()
    assert after["entries"].untyped_storage().data_ptr() == place
    assert after["seen"].tolist() == [2, 14]


def test_a_skipped_block_stores_everything_and_attends_to_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    block = laws.lively(attention(dropout=0.5)).train()
    full = skipped = block.initial_state(2, laws.stream())
    for segment in laws.stream().split(5, dim=1):
        full = block(segment, full)[1]
        with monkeypatch.context() as patch:
            patch.setattr(module, "window_attention", None)
            skipped = block.skip_step(segment, skipped)
    assert full.keys() == skipped.keys()
    for key, tensor in full.items():
        torch.testing.assert_close(skipped[key], tensor, rtol=0, atol=0)


@pytest.mark.parametrize("settings", [{"limit": 0}, {"starts": ()}, {"starts": (65.0,)}])
def test_impossible_spans_are_refused(settings: dict) -> None:
    with pytest.raises(ValueError, match="limit"):
        attention(**settings)
