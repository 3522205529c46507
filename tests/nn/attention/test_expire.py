"""Expire-Span: the formula memory by memory, and forgetting that changes no answer."""

import math

import pytest
import torch
from torch import Tensor

from sparing.nn.attention.expire import ExpireAttention, ExpireSpan, ExpiringMemory
from sparing.ops.span_attention import Ramp
from sparing.ops.span_attention.expiring import expiry

LIMIT, RAMP, DIM, HEADS, NEAR = 20, 3, 8, 2, 4


def attention(limit: int = LIMIT, *, noisy: bool = False) -> ExpireAttention:
    torch.manual_seed(0)
    span = ExpireSpan(DIM, limit, start=0.2)
    torch.nn.init.normal_(span.gauge.weight, std=0.5)
    return ExpireAttention(DIM, HEADS, span=span, ramp=RAMP, noisy=noisy).double()


def nothing(batch: int) -> ExpiringMemory:
    return ExpiringMemory(
        torch.zeros(batch, 0, DIM).double(), torch.zeros(batch, 0, dtype=torch.long)
    )


def by_hand(layer: ExpireAttention, hidden_TD: Tensor, position_KP: Tensor) -> Tensor:
    """The whole text at once, slot by slot."""
    q, k, v = (m(hidden_TD).view(-1, HEADS, 4) for m in (layer.query, layer.key, layer.value))
    spans, rows = LIMIT * torch.sigmoid(layer.span.gauge(hidden_TD)).squeeze(-1), []
    for t in range(len(hidden_TD)):
        heads = []
        for h in range(HEADS):
            total, mixed = 0.0, torch.zeros(4).double()
            for i in range(max(0, t - LIMIT), t):
                mask = min(1.0, max(0.0, 1 + (spans[i].item() - (t - i)) / RAMP))
                key = k[i, h] + (position_KP[:, NEAR - (t - i)] if t - i <= NEAR else 0)
                share = mask * math.exp((q[t, h] @ key).item() / 2)
                total, mixed = total + share, mixed + share * v[i, h]
            heads.append(mixed / total if total else mixed)
        rows.append(torch.cat(heads))
    return layer.out(torch.stack(rows))


@pytest.mark.parametrize("size", [1, 7, 40])
def test_every_memory_counts_by_its_own_span_however_the_text_is_cut(size: int) -> None:
    layer, hidden_BTD = attention(), torch.randn(2, 40, DIM).double()
    position_KP = torch.randn(4, NEAR).double()
    past, pieces, places = nothing(2), [], []
    for piece_BTD in hidden_BTD.split(size, dim=1):
        out_BTD, past, _ = layer(piece_BTD, past, position_KP)
        pieces.append(out_BTD)
        places.append(past.age_BM.size(1))
    out_BTD = torch.cat(pieces, dim=1)
    for lane in range(2):
        expected = by_hand(layer, hidden_BTD[lane], position_KP)
        torch.testing.assert_close(out_BTD[lane], expected, rtol=1e-5, atol=1e-6)
    # Fewer than the limit: the others have expired, and what stays is what may yet be seen.
    assert 0 < places[-1] < LIMIT
    spans = layer.span.lengths(past.hidden_BMD)
    alive = past.age_BM > 0
    assert (spans[alive] + RAMP > past.age_BM[alive]).all()
    assert not past.hidden_BMD[~alive].any()


def test_the_first_token_sees_nothing() -> None:
    layer = attention()
    out_BTD, _, penalty = layer(torch.randn(1, 1, DIM).double(), nothing(1), torch.zeros(4, NEAR))
    assert not out_BTD.any()
    assert penalty == 0


def test_spans_begin_at_the_given_ratio() -> None:
    span = ExpireSpan(DIM, 1000, start=0.1)
    assert span.lengths(torch.randn(1, 3, DIM)).flatten().tolist() == pytest.approx([100] * 3)


def test_the_penalty_is_what_is_left_on_the_ramp() -> None:
    span_BS = torch.tensor([[2.0, 2.5, 9.0, 1.0]], requires_grad=True)
    distance_BTS = torch.tensor([[[4, 3, 2, 0], [5, 4, 3, 1]]])
    _, penalty = expiry(span_BS, distance_BTS, 100, Ramp(3, offset=0))
    # Differences of -2, -0.5 and -1.5 lie on the ramp; -3 is past it, 0 before it.
    assert penalty.item() == pytest.approx((-2 - 0.5 - 1.5) / (3 * 2))
    penalty.backward()
    assert span_BS.grad.tolist() == [pytest.approx([1 / 6, 2 / 6, 0, 0])]


def test_noise_shortens_spans_in_training_only() -> None:
    hidden_BTD, position_KP = torch.randn(1, 30, DIM).double(), torch.randn(4, NEAR).double()
    layer = attention(noisy=True)
    first, second = (layer(hidden_BTD, nothing(1), position_KP)[0] for _ in range(2))
    assert not torch.equal(first, second)
    layer.eval()
    first, second = (layer(hidden_BTD, nothing(1), position_KP)[0] for _ in range(2))
    assert torch.equal(first, second)


def test_the_gradient_of_a_memorys_span_is_its_derivative() -> None:
    layer, hidden_BTD = attention(), torch.randn(1, 12, DIM).double()
    position_KP, bias = torch.randn(4, NEAR).double(), layer.span.gauge.bias

    def total() -> Tensor:
        return layer(hidden_BTD, nothing(1), position_KP)[0].sin().sum()

    before = total()
    (gradient,) = torch.autograd.grad(before, bias)
    bias.data += 1e-4
    after = total().item()
    bias.data -= 2e-4
    assert gradient.item() == pytest.approx((after - total().item()) / 2e-4, rel=0.02)
