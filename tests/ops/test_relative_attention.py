"""Relative attention against explicit loops: scores by distance, reach, gradients."""

import math

import pytest
import torch
from torch import Tensor

from sparing.ops.relative_attention import Bias, fused, reference, relative_attention, shifted

SHAPES = [(1, 1), (1, 6), (4, 4), (3, 8), (5, 7), (7, 7)]
every_shape = pytest.mark.parametrize(("segment", "keys"), SHAPES)


def inputs(segment: int, keys: int, batch: int = 2) -> list[Tensor]:
    """Query, keys, values, positions and the two biases; 3 heads of 4."""
    torch.manual_seed(segment + 10 * keys)
    shapes = [(batch, segment, 3, 4), (batch, keys, 3, 4), (batch, keys, 3, 4), (keys, 3, 4)]
    tensors = [torch.randn(shape, dtype=torch.float64) for shape in (*shapes, (3, 4), (3, 4))]
    return [tensor.requires_grad_() for tensor in tensors]


def attend(implementation, tensors: list[Tensor], **settings) -> Tensor:
    query, keys, values, positions, content, position = tensors
    return implementation(query, keys, values, positions, Bias(content, position), **settings)


def by_loop(tensors: list[Tensor], reach: int | None = None) -> Tensor:
    """One query, one head, one key at a time, as the paper writes it."""
    query, keys, values, positions, u, v = (tensor.detach() for tensor in tensors)
    out = torch.zeros_like(query)
    (batch, segment, heads, dim), count = query.shape, keys.size(1)
    for b in range(batch):
        for h in range(heads):
            for i in range(segment):
                scores, seen = [], []
                for j in range(count):
                    distance = i + (count - segment) - j
                    if distance < 0 or (reach is not None and distance >= reach):
                        continue
                    r = positions[count - 1 - distance, h]
                    q = query[b, i, h]
                    score = (q + u[h]) @ keys[b, j, h] + (q + v[h]) @ r
                    scores.append(score / math.sqrt(dim))
                    seen.append(j)
                weights = torch.softmax(torch.stack(scores), dim=0)
                out[b, i, h] = sum(w * values[b, j, h] for w, j in zip(weights, seen, strict=True))
    return out


@every_shape
@pytest.mark.parametrize("reach", [None, 1, 3, 100])
@pytest.mark.parametrize("which", [reference, shifted, fused])
def test_it_is_the_paper_s_formula_written_as_a_loop(
    which, segment: int, keys: int, reach: int | None
) -> None:
    tensors = inputs(segment, keys)
    found = attend(which.relative_attention, tensors, reach=reach)
    torch.testing.assert_close(found, by_loop(tensors, reach), rtol=0, atol=1e-12)


@every_shape
@pytest.mark.parametrize("reach", [None, 3])
@pytest.mark.parametrize("which", [reference, shifted, fused])
def test_slots_from_before_a_lane_began_do_not_exist(
    which, segment: int, keys: int, reach: int | None
) -> None:
    tensors, memory = inputs(segment, keys, batch=4), keys - segment
    counts = [0, 1, memory, 99]
    found = attend(
        which.relative_attention, tensors, reach=reach, seen_B=torch.tensor(counts)
    ).detach()
    for lane, seen in enumerate(counts):
        begin = max(0, memory - seen)
        query, stored, values, positions, *biases = tensors
        own = [query[lane, None], *(each[lane, None, begin:] for each in (stored, values))]
        expected = by_loop([*own, positions[begin:], *biases], reach)
        torch.testing.assert_close(found[lane, None], expected, rtol=0, atol=1e-12)


@every_shape
def test_the_shift_puts_every_distance_under_its_key(segment: int, keys: int) -> None:
    query, positions = inputs(segment, keys)[0].detach(), inputs(segment, keys)[3].detach()
    found = shifted.score_by_distance(query, positions)
    for i in range(segment):
        for j in range(i + keys - segment + 1):
            distance = i + (keys - segment) - j
            row = positions[keys - 1 - distance]
            expected = torch.einsum("bhk,hk->bh", query[:, i], row)
            torch.testing.assert_close(found[:, :, i, j], expected)


@every_shape
@pytest.mark.parametrize("reach", [None, 3])
@pytest.mark.parametrize("seen", [None, (0, 2)])
def test_the_shifted_form_has_the_gradients_of_the_definition(
    segment: int, keys: int, reach: int | None, seen: tuple[int, ...] | None
) -> None:
    seen_B = None if seen is None else torch.tensor(seen)
    tensors = inputs(segment, keys)
    probe = torch.randn_like(tensors[0])
    by_lookup, by_shift = (
        torch.autograd.grad(
            (attend(which, tensors, reach=reach, seen_B=seen_B) * probe).sum(), tensors
        )
        for which in (reference.relative_attention, relative_attention)
    )
    for one, other in zip(by_shift, by_lookup, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("segment", "memory", "reach", "counts"),
    [
        # Without a reach query i sees M + i + 1 keys; with a reach of M, M once memory is full.
        (4, 8, None, [9, 10, 11, 12]),
        (4, 8, 8, [8, 8, 8, 8]),
        (4, 0, 8, [1, 2, 3, 4]),
        (4, 4, 8, [5, 6, 7, 8]),
        (4, 6, 8, [7, 8, 8, 8]),
        (1, 8, 8, [8]),
        (4, 0, 0, [1, 1, 1, 1]),
        (6, 3, 3, [3, 3, 3, 3, 3, 3]),
    ],
)
def test_key_counts(segment: int, memory: int, reach: int | None, counts: list[int]) -> None:
    seen_TS = ~reference.hidden_keys(segment, memory + segment, reach, torch.device("cpu"))
    assert seen_TS.sum(-1).tolist() == counts
    assert seen_TS[torch.arange(segment), torch.arange(segment) + memory].all()


def test_what_a_query_must_not_see_may_hold_anything() -> None:
    tensors = inputs(3, 7)
    tensors = [tensor.detach() for tensor in tensors]
    before = attend(relative_attention, tensors, reach=4)
    tensors[1], tensors[2] = tensors[1].clone(), tensors[2].clone()
    # Slot 1 is 5 back for the first query; slot 6 is the future of the first two.
    tensors[1][:, [0, 6]], tensors[2][:, [0, 6]] = 1e4, -1e4
    after = attend(relative_attention, tensors, reach=4)
    torch.testing.assert_close(after[:, :2], before[:, :2], rtol=0, atol=0)
    assert (after[:, 2] - before[:, 2]).abs().amax() > 1


@pytest.mark.parametrize("which", [shifted, fused])
def test_half_precision_is_close_to_double(which) -> None:
    tensors = [tensor.detach() for tensor in inputs(5, 9)]
    exact = attend(which.relative_attention, tensors)
    rough = attend(which.relative_attention, [tensor.bfloat16() for tensor in tensors])
    plain = attend(reference.relative_attention, [tensor.bfloat16() for tensor in tensors])
    limit = 2 * (plain.double() - exact).abs().amax() + 1e-2
    assert (rough.double() - exact).abs().amax() <= limit


def test_the_fused_form_is_taken_without_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, called = inputs(2, 3), []
    for module in (fused, shifted):
        monkeypatch.setattr(
            module, "relative_attention", lambda *_, m=module, **__: called.append(m)
        )
    attend(relative_attention, tensors)
    with torch.no_grad():
        attend(relative_attention, tensors)
    assert called == [shifted, fused]


def test_dropout_scales_what_it_keeps() -> None:
    torch.manual_seed(0)
    tensors = [tensor.detach() for tensor in inputs(4, 6)]
    tensors[2] = torch.ones_like(tensors[2])
    mixed = torch.stack([attend(relative_attention, tensors, dropout=0.5) for _ in range(600)])
    assert mixed.std() > 0.1
    torch.testing.assert_close(mixed.mean(0), torch.ones_like(mixed[0]), rtol=0, atol=0.15)
