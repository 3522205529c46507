"""The plain softmax head."""

import pytest
import torch
from torch import nn

from sparing.nn.head import HeldOutLanesHead, Lanes, SoftmaxHead
from sparing.units import IGNORE_INDEX


def test_nats_are_minus_log_probabilities_and_ignored_targets_cost_nothing() -> None:
    torch.manual_seed(0)
    table = torch.nn.Parameter(torch.randn(5, 3))
    head = SoftmaxHead(table)
    torch.nn.init.normal_(head.bias)
    hidden_BTD, targets_BT = torch.randn(2, 4, 3), torch.randint(0, 5, (2, 4))
    targets_BT[1, 2] = IGNORE_INDEX
    nats_BT = head.nats(hidden_BTD, targets_BT)
    probability_BTV = torch.softmax(hidden_BTD @ table.T + head.bias, dim=-1)
    for b in range(2):
        for t in range(4):
            expected = 0.0
            if targets_BT[b, t] != IGNORE_INDEX:
                expected = -probability_BTV[b, t, targets_BT[b, t]].log().item()
            torch.testing.assert_close(nats_BT[b, t].item(), expected, rtol=1e-5, atol=1e-6)


def test_the_loss_is_float32_even_where_products_are_not() -> None:
    head = SoftmaxHead(torch.nn.Parameter(torch.randn(5, 3)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        nats_BT = head.nats(torch.randn(1, 2, 3), torch.tensor([[1, 2]]))
    assert nats_BT.dtype == torch.float32


def test_a_tied_table_is_one_parameter() -> None:
    embedding = torch.nn.Embedding(5, 3)
    holder = torch.nn.Module()
    holder.embedding, holder.head = embedding, SoftmaxHead.tied(embedding, bias=False)
    assert [name for name, _ in holder.named_parameters()] == ["embedding.weight"]


def parts(batch: int = 5) -> tuple[HeldOutLanesHead, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    head = HeldOutLanesHead(SoftmaxHead(nn.Parameter(torch.randn(7, 4))), 0.2)
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
    targets[4] = IGNORE_INDEX
    head.nats(hidden, targets).sum().backward()
    assert hidden.grad is not None
    assert not hidden.grad.any()


def test_one_lane_cannot_be_two() -> None:
    head, hidden, targets = parts(1)
    head.lanes = "held"
    with pytest.raises(ValueError, match="only one"):
        head.nats(hidden, targets)
