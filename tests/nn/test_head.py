"""The plain softmax head."""

import torch

from sparing.nn.head import SoftmaxHead
from sparing.padding import IGNORED


def test_nats_are_minus_log_probabilities_and_ignored_targets_cost_nothing() -> None:
    torch.manual_seed(0)
    table = torch.nn.Parameter(torch.randn(5, 3))
    head = SoftmaxHead(table)
    torch.nn.init.normal_(head.bias)
    hidden_BTD, targets_BT = torch.randn(2, 4, 3), torch.randint(0, 5, (2, 4))
    targets_BT[1, 2] = IGNORED
    nats_BT = head.nats(hidden_BTD, targets_BT)
    probability_BTV = torch.softmax(hidden_BTD @ table.T + head.bias, dim=-1)
    for b in range(2):
        for t in range(4):
            expected = 0.0
            if targets_BT[b, t] != IGNORED:
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
