"""Lookahead: where the two weights meet, and what is saved."""

import copy

import pytest
import torch
from torch import Tensor
from torch.optim import SGD, AdamW

from sparing.train.optim.lookahead import Lookahead


def step(optimizer: Lookahead, p: Tensor, gradient: float) -> None:
    p.grad = torch.full_like(p, gradient)
    optimizer.step()


def test_every_fifth_step_goes_back_a_fifth_of_the_way() -> None:
    p = torch.zeros(2, requires_grad=True)
    optimizer = Lookahead(SGD([p], lr=1.0))
    seen = []
    for _ in range(10):
        step(optimizer, p, -1.0)
        seen.append(float(p.detach()[0]))
    assert seen == pytest.approx([1, 2, 3, 4, 4, 5, 6, 7, 8, 8])


def test_weights_loaded_after_construction_are_where_it_begins() -> None:
    p = torch.zeros(2, requires_grad=True)
    optimizer = Lookahead(SGD([p], lr=1.0))
    with torch.no_grad():
        p.fill_(100.0)
    for _ in range(5):
        step(optimizer, p, -1.0)
    assert float(p.detach()[0]) == pytest.approx(104.0)


def test_a_new_learning_rate_reaches_the_inner_optimizer() -> None:
    p = torch.zeros(2, requires_grad=True)
    optimizer = Lookahead(SGD([p], lr=1.0))
    optimizer.param_groups[0]["lr"] = 0.5
    step(optimizer, p, -1.0)
    assert float(p.detach()[0]) == 0.5


def test_the_state_goes_through_state_dict() -> None:
    def fresh() -> tuple[Tensor, Lookahead]:
        p = torch.ones(3, requires_grad=True)
        return p, Lookahead(AdamW([p], lr=0.1))

    (p, whole), (q, first), (r, second) = fresh(), fresh(), fresh()
    for number in range(7):
        step(whole, p, 1.0 + number)
    for number in range(4):
        step(first, q, 1.0 + number)
    with torch.no_grad():
        r.copy_(q)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for number in range(4, 7):
        step(second, r, 1.0 + number)
    assert torch.equal(r, p)
    assert not torch.equal(q, p)
