"""Lanes that teach, lanes that are only told."""

import pytest
import torch
from torch import nn

from sparing.nn.head import IGNORED, SoftmaxHead
from sparing.nn.lanes import LaneHead, Lanes


def parts(batch: int = 5) -> tuple[LaneHead, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    head = LaneHead(SoftmaxHead(nn.Parameter(torch.randn(7, 4))), 0.2)
    return head, torch.randn(batch, 3, 4, requires_grad=True), torch.randint(0, 7, (batch, 3))


@pytest.mark.parametrize("lanes", ["all", "most", "held"])
def test_the_loss_told_is_everybodys(lanes: Lanes) -> None:
    head, hidden, targets = parts()
    head.lanes = lanes
    torch.testing.assert_close(
        head.nats(hidden, targets), head.inner.nats(hidden, targets), rtol=0, atol=0
    )


@pytest.mark.parametrize(("lanes", "teachers"), [("most", [0, 1, 2, 3]), ("held", [4])])
def test_the_gradient_is_the_mean_of_the_teachers_alone(lanes: Lanes, teachers: list[int]) -> None:
    head, hidden, targets = parts()
    head.lanes = lanes
    head.nats(hidden, targets).mean().backward()
    found = [parameter.grad for parameter in head.parameters()]
    assert hidden.grad is not None
    silent = [lane for lane in range(5) if lane not in teachers]
    assert not hidden.grad[silent].any()
    head.zero_grad()
    head.inner.nats(hidden[teachers], targets[teachers]).mean().backward()
    for one, other in zip(found, head.parameters(), strict=True):
        torch.testing.assert_close(one, other.grad)


def test_ignored_targets_stay_free() -> None:
    head, hidden, targets = parts()
    head.lanes = "held"
    targets[4] = IGNORED
    head.nats(hidden, targets).sum().backward()
    assert hidden.grad is not None
    assert not hidden.grad.any()


def test_one_lane_cannot_be_two() -> None:
    head, hidden, targets = parts(1)
    head.lanes = "held"
    with pytest.raises(ValueError, match="only one"):
        head.nats(hidden, targets)
