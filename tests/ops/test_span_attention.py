"""Span attention: the definition against a loop, the banded form against the definition."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from sparing.ops.span_attention import (
    PersistentVectors,
    Ramp,
    banded,
    log_mask,
    reference,
    soft_mask,
)

B, H, K = 2, 3, 4


def inputs(
    segment: int, memory: int, width: int, *, persistent: int = 0, seed: int = 0
) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    shapes: dict[str, tuple[int, ...]] = {
        "query": (B, H, segment, K),
        "keys": (B, H, memory + segment, K),
        "values": (B, H, memory + segment, K),
        "position": (K, width),
    }
    if persistent:
        shapes |= {"fixed_keys": (H, K, persistent), "fixed_values": (H, persistent, K)}
    return {name: torch.randn(*shape).double().requires_grad_() for name, shape in shapes.items()}


def attend(form: Any, given: dict[str, Tensor], span: Tensor, ramp: Ramp, **more: Any) -> Tensor:
    fixed = None
    if "fixed_keys" in given:
        fixed = PersistentVectors(given["fixed_keys"], given["fixed_values"])
    tensors = [given[name] for name in ("query", "keys", "values", "position")]
    out: Tensor = form.span_attention(*tensors, span, ramp=ramp, persistent=fixed, **more)
    return out


def by_hand(given: dict[str, Tensor], spans: list[float], ramp: Ramp, b: int, t: int) -> Tensor:
    """One row of the answer from the formula of the paper, slot by slot."""
    q, k, v, p = (given[name].detach() for name in ("query", "keys", "values", "position"))
    memory, width, mixed = k.size(2) - q.size(2), p.size(1), []
    for h, span in enumerate(spans):
        total, numerator = 0.0, torch.zeros(K).double()
        for distance in range(1, width + 1):
            slot = memory + t - distance
            key = k[b, h, slot] if slot >= 0 else torch.zeros(K).double()
            value = v[b, h, slot] if slot >= 0 else torch.zeros(K).double()
            score = (q[b, h, t] @ (key + p[:, width - distance])).item() / math.sqrt(K)
            raw = (ramp.length + ramp.offset + span - distance) / ramp.length
            share = math.exp(score) * min(1.0, max(0.0, raw))
            total, numerator = total + share, numerator + share * value
        mixed.append(numerator / total)
    return torch.stack(mixed)


@pytest.mark.parametrize("offset", [0, 1])
def test_the_definition_is_the_formula(offset: int) -> None:
    given, ramp, spans = inputs(3, 2, 9), Ramp(4, offset), [0.0, 2.5, 7.0]
    out = attend(reference, given, torch.tensor(spans).double(), ramp)
    for b in range(B):
        for t in range(3):
            torch.testing.assert_close(out[b, :, t], by_hand(given, spans, ramp, b, t))


@pytest.mark.parametrize("zeros", [True, False])
@pytest.mark.parametrize("persistent", [0, 5])
@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize(
    ("segment", "memory", "width"), [(1, 7, 7), (5, 0, 9), (13, 6, 3), (37, 4, 11), (70, 90, 80)]
)
def test_the_banded_form_gives_the_same_answer_and_gradients(
    segment: int, memory: int, width: int, closed: bool, persistent: int, zeros: bool
) -> None:
    given, ramp = inputs(segment, memory, width, persistent=persistent), Ramp(2, 1, closed)
    span = torch.tensor([0.0, 1.5, width / 2 // 1]).double().requires_grad_()
    grad = torch.randn(B, H, segment, K).double()
    answers = []
    for form in (reference, banded):
        out = attend(form, given, span, ramp, zeros=zeros)
        answers.append((out, *torch.autograd.grad(out, [*given.values(), span], grad)))
    for name, slow, fast in zip(["out", *given, "span"], *answers, strict=True):
        torch.testing.assert_close(fast, slow, rtol=1e-9, atol=1e-11, msg=name)


@pytest.mark.parametrize("persistent", [0, 5])
@pytest.mark.parametrize("form", [reference, banded])
@pytest.mark.parametrize(("segment", "memory", "width"), [(1, 7, 7), (5, 4, 9), (13, 6, 3)])
def test_slots_from_before_a_lane_began_do_not_exist(
    form: Any, segment: int, memory: int, width: int, persistent: int
) -> None:
    given, ramp = inputs(segment, memory, width, persistent=persistent), Ramp(2)
    given = {name: tensor.detach() for name, tensor in given.items()}
    counts, span = (0, 2), torch.tensor([0.0, 1.5, 9.0]).double()
    for lane, seen in enumerate(counts):
        for name in ("keys", "values"):
            given[name][lane, :, : memory - seen] = 0
    found = attend(form, given, span, ramp, zeros=False, seen_B=torch.tensor(counts))
    for lane, seen in enumerate(counts):
        own = given | {"query": given["query"][lane, None]}
        own |= {name: given[name][lane, None, :, memory - seen :] for name in ("keys", "values")}
        alone = attend(reference, own, span, ramp, zeros=False)
        torch.testing.assert_close(found[lane, None], alone)


@pytest.mark.parametrize("shape", [(B, H, 6), (B, 1, 6, 9)])
def test_spans_of_queries_and_of_keys(shape: tuple[int, ...]) -> None:
    given, ramp = inputs(6, 4, 9), Ramp(3)
    span = (torch.rand(shape).double() * 6).requires_grad_()
    slow, fast = (attend(form, given, span, ramp) for form in (reference, banded))
    torch.testing.assert_close(fast, slow)
    wanted = [*given.values(), span]
    gradients = [torch.autograd.grad(out.square().sum(), wanted) for out in (slow, fast)]
    torch.testing.assert_close(gradients[1], gradients[0])


def test_what_lies_beyond_the_reach_makes_no_difference() -> None:
    given, ramp = inputs(12, 20, 30), Ramp(4)
    span = torch.tensor([0.0, 2.5, 6.0]).double().requires_grad_()
    whole = attend(reference, given, span, ramp)
    reach = ramp.reach(6.0)
    assert reach == 11
    near = {**given, "position": given["position"][:, -reach:]}
    cut = attend(banded, near, span, ramp)
    torch.testing.assert_close(cut, whole)
    wanted = [*given.values(), span]
    gradients = [torch.autograd.grad(out.square().sum(), wanted) for out in (whole, cut)]
    torch.testing.assert_close(gradients[1], gradients[0])


def test_the_mask_has_the_values_of_the_table() -> None:
    at = torch.tensor([1.0, 2.0, 32.0, 33.0, 34.0])
    code = soft_mask(torch.tensor(0.0), at, Ramp(32))
    assert code.tolist() == [1, 31 / 32, 1 / 32, 0, 0]
    paper = soft_mask(torch.tensor(0.0), at, Ramp(32, offset=0))
    assert paper.tolist() == [31 / 32, 30 / 32, 0, 0, 0]
    for span in (0.0, 3.5, 20.25, 40.0):
        mask = soft_mask(torch.tensor(span), torch.arange(1.0, 200), Ramp(32))
        assert int((mask > 0).sum()) == math.ceil(span) + 32


def test_the_logarithm_is_that_of_the_mask_and_finite_within_reach() -> None:
    span = torch.tensor([[0.0], [3.0], [3.25]], requires_grad=True)
    distance = torch.arange(1.0, 9)
    logarithm = log_mask(span, distance, Ramp(4))
    torch.testing.assert_close(logarithm.exp(), soft_mask(span, distance, Ramp(4)))
    assert (logarithm[0] == -torch.inf).tolist() == [False] * 5 + [True] * 3
    (gradient,) = torch.autograd.grad(logarithm.exp().sum(), span)
    # Four positions lie on every ramp, at a slope of a quarter each.
    torch.testing.assert_close(gradient, torch.ones(3, 1))


@pytest.mark.parametrize("form", [reference, banded])
@pytest.mark.parametrize("where", [0.0, 3.0, 4.5])
def test_the_span_gradient_is_the_derivative_towards_longer_spans(form: Any, where: float) -> None:
    given, ramp = inputs(6, 8, 14), Ramp(4)
    span = torch.full((H,), where).double().requires_grad_()
    loss = attend(form, given, span, ramp).sin().sum()
    (gradient,) = torch.autograd.grad(loss, span)
    for head in range(H):
        moved = span.detach().clone()
        moved[head] += 1e-6
        after = attend(reference, given, moved, ramp).sin().sum()
        assert gradient[head].item() == pytest.approx((after - loss).item() / 1e-6, abs=2e-5)


def test_closed_ends_change_the_gradient_at_whole_spans_only() -> None:
    given = inputs(6, 8, 14)
    for where, same in ((3.0, False), (3.5, True)):
        span = torch.full((H,), where).double().requires_grad_()
        sums = [attend(banded, given, span, Ramp(4, 1, closed)).sin().sum() for closed in (0, 1)]
        open_, closed = (torch.autograd.grad(total, span)[0] for total in sums)
        assert torch.allclose(open_, closed) is same


@pytest.mark.parametrize("form", [reference, banded])
def test_in_single_precision_the_gradient_survives_far_scores(form: Any) -> None:
    given = {name: tensor.detach().float() for name, tensor in inputs(4, 8, 12).items()}
    given["position"][:, :-3] += 30 * given["query"][0, 0, 0, :, None].sign()
    span = torch.zeros(H, requires_grad=True)
    out = attend(form, given, span, Ramp(4))
    (gradient,) = torch.autograd.grad(out.sum(), span)
    assert out.isfinite().all()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("form", [reference, banded])
def test_a_stream_that_begins_with_nothing_sees_nothing(form: Any) -> None:
    given, span = inputs(4, 0, 6), torch.tensor([0.0, 1.0, 2.0]).double()
    out = attend(form, given, span, Ramp(3), zeros=False)
    assert not out[:, :, 0].any()
    # The second token sees the first alone.
    torch.testing.assert_close(out[:, :, 1], given["values"][:, :, 0])
    assert attend(form, given, span, Ramp(3), zeros=True)[:, :, 1].norm() < out[:, :, 1].norm()


def test_dropout_acts_on_the_weights_and_keeps_their_mean() -> None:
    given = {name: tensor.detach() for name, tensor in inputs(3, 30, 30).items()}
    given["values"] = torch.ones_like(given["values"])
    span = torch.full((H,), 20.0).double()
    for form in (reference, banded):
        torch.manual_seed(0)
        drawn = torch.stack([attend(form, given, span, Ramp(4), dropout=0.5) for _ in range(60)])
        assert drawn.std() > 0.01
        assert drawn.mean().item() == pytest.approx(1.0, abs=0.05)


def test_low_precision_products_keep_a_gradient() -> None:
    given = {name: tensor.detach().bfloat16() for name, tensor in inputs(9, 4, 8).items()}
    span = torch.zeros(H, requires_grad=True)
    out = attend(banded, given, span, Ramp(4))
    assert out.dtype == torch.bfloat16
    exact = {name: tensor.double() for name, tensor in given.items()}
    double = span.detach().double().requires_grad_()
    wanted = attend(reference, exact, double, Ramp(4))
    torch.testing.assert_close(out.double(), wanted, rtol=0, atol=0.05)
    (gradient,) = torch.autograd.grad(out.float().sum(), span)
    (expected,) = torch.autograd.grad(wanted.sum(), double)
    torch.testing.assert_close(gradient.double(), expected, rtol=0.1, atol=0.1)
