"""Adaptive embedding and softmax against probabilities worked out by hand."""

import math

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from sparing.data.cutoffs import CutoffConfig, cutoff_cost
from sparing.nn.adaptive_softmax import (
    AdaptiveEmbedding,
    AdaptiveHead,
    TiedProjections,
    check_clusters,
    clusters,
    shortlist,
)
from sparing.units import IGNORE_INDEX

TIES: list[TiedProjections] = ["all", "tails", "none"]


def pair(
    cutoffs: tuple[int, ...] = (3, 6),
    shrink: int = 1,
    *,
    tied: bool = True,
    tied_projections: TiedProjections = "tails",
) -> tuple[AdaptiveEmbedding, AdaptiveHead]:
    """Both ends of a vocabulary of ten words, four numbers wide."""
    torch.manual_seed(2)
    embedding = AdaptiveEmbedding(10, 4, cutoffs=cutoffs, shrink=shrink)
    head = AdaptiveHead(embedding, tied=tied, tied_projections=tied_projections)
    with torch.no_grad():
        for parameter in (*embedding.parameters(), *head.parameters()):
            parameter.normal_()
    return embedding.double(), head.double()


def count(*modules: torch.nn.Module) -> int:
    distinct = {id(p): p.numel() for module in modules for p in module.parameters()}
    return sum(distinct.values())


def test_a_loss_worked_out_by_hand() -> None:
    embedding = AdaptiveEmbedding(4, 2, cutoffs=(2, 3))
    head = AdaptiveHead(embedding)
    with torch.no_grad():
        embedding.weights[0].copy_(torch.tensor([[1.0, 0], [0, 1], [1, 1], [2, 0]]))
        head.bias.copy_(torch.tensor([0.0, 0.1, 0.2, 0.3]))
        assert head.symbols is not None
        head.symbols.weight.copy_(torch.tensor([[0.5, 0.0], [0.0, -0.5]]))
        head.symbols.bias.copy_(torch.tensor([0.4, 0.6]))
    hidden = torch.tensor([[[2.0, 3.0]] * 4])
    # Short list: 2 and 3 + 0.1. The symbols: 1 + 0.4 and -1.5 + 0.6; the first tail has the last.
    scores = [2.0, 3.1, 1.4, -0.9]
    total = math.log(sum(math.exp(score) for score in scores))
    # Tails of a single word add nothing: log 1.
    expected = torch.tensor([[total - 2.0, total - 3.1, total + 0.9, total - 1.4]])
    torch.testing.assert_close(head.nats(hidden, torch.tensor([[0, 1, 2, 3]])), expected)
    torch.testing.assert_close(head.logits(hidden[0, 0]), -expected[0])


@pytest.mark.parametrize("shrink", [1, 2])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("tied_projections", TIES)
@pytest.mark.parametrize("cutoffs", [(), (3,), (3, 6)])
def test_losses_are_the_log_probabilities_and_these_sum_to_one(
    cutoffs: tuple[int, ...], tied_projections: TiedProjections, tied: bool, shrink: int
) -> None:
    _, head = pair(cutoffs, shrink, tied=tied, tied_projections=tied_projections)
    hidden, targets = torch.randn(3, 8, 4).double(), torch.randint(0, 10, (3, 8))
    logits = head.logits(hidden)
    torch.testing.assert_close(logits.exp().sum(-1), torch.ones(3, 8).double())
    expected = -logits.gather(-1, targets[..., None]).squeeze(-1)
    torch.testing.assert_close(head.nats(hidden, targets), expected)


@pytest.mark.parametrize("shrink", [1, 2])
def test_a_tail_goes_through_its_symbol_and_its_own_softmax(shrink: int) -> None:
    embedding, head = pair(shrink=shrink)
    hidden = torch.randn(4).double()

    def down(index: int) -> Tensor:
        return hidden if shrink == 1 else hidden @ head.projections[index]

    def rows(index: int) -> Tensor:
        low, high = [(0, 3), (3, 6), (6, 10)][index]
        weight = embedding.weights[0][low:high] if shrink == 1 else embedding.weights[index]
        return weight @ down(index) + head.bias[low:high]

    assert head.symbols is not None
    first = torch.log_softmax(torch.cat([rows(0), head.symbols(down(0))]), dim=0)
    logits = head.logits(hidden)
    torch.testing.assert_close(logits[:3], first[:3])
    torch.testing.assert_close(logits[3:6], first[4] + torch.log_softmax(rows(1), dim=0))
    torch.testing.assert_close(logits[6:], first[3] + torch.log_softmax(rows(2), dim=0))


def test_losses_come_in_the_order_of_the_targets() -> None:
    _, head = pair(shrink=2)
    hidden, targets = torch.randn(1, 6, 4).double(), torch.tensor([[9, 0, 4, 1, 7, 5]])
    order = torch.tensor([3, 5, 0, 2, 4, 1])
    torch.testing.assert_close(
        head.nats(hidden[:, order], targets[:, order]), head.nats(hidden, targets)[:, order]
    )


@pytest.mark.parametrize(
    "targets", [[0, 1, 2], [7, 8, 9], [IGNORE_INDEX] * 3, [IGNORE_INDEX, 4, 0]]
)
@pytest.mark.parametrize("shrink", [1, 2])
def test_clusters_without_a_target_do_no_harm(shrink: int, targets: list[int]) -> None:
    embedding, head = pair(shrink=shrink)
    ids = torch.tensor([targets])
    hidden = embedding(ids.clamp(min=0)).requires_grad_()
    nats = head.nats(hidden, ids)
    assert nats.shape == ids.shape
    assert not nats[ids == IGNORE_INDEX].any()
    assert (nats[ids != IGNORE_INDEX] > 0).all()
    nats.sum().backward()
    for parameter in (*embedding.parameters(), *head.parameters()):
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()


@pytest.mark.parametrize("shrink", [1, 2])
def test_embedding_is_a_row_of_its_cluster_s_table_projected(shrink: int) -> None:
    embedding, _ = pair(shrink=shrink)
    ids = torch.tensor([[9, 0, 4], [3, 6, 2]])
    found = embedding(ids)
    assert found.shape == (2, 3, 4)
    for place, word in enumerate(ids.flatten().tolist()):
        index = 0 if word < 3 else 1 if word < 6 else 2
        expected = embedding.weights[0][word] if shrink == 1 else (
            embedding.projections[index] @ embedding.weights[index][word - (0, 3, 6)[index]]
        )  # fmt: skip
        torch.testing.assert_close(found.view(6, 4)[place], expected)


@pytest.mark.parametrize("shrink", [1, 2])
def test_an_untied_head_learns_apart_from_the_embedding(shrink: int) -> None:
    ids = torch.tensor([[0, 4, 9]])
    for tied in (True, False):
        embedding, head = pair(shrink=shrink, tied=tied, tied_projections="none")
        head.nats(torch.randn(1, 3, 4).double(), ids).sum().backward()
        assert all((weight.grad is not None) == tied for weight in embedding.weights)
        assert all(weight.grad is not None for weight in head.weights)


@pytest.mark.parametrize("shrink", [1, 2])
@pytest.mark.parametrize("cutoffs", [(3,), (3, 6), (1, 4, 7)])
def test_it_multiplies_as_often_as_it_says(cutoffs: tuple[int, ...], shrink: int) -> None:
    torch.manual_seed(0)
    embedding = AdaptiveEmbedding(10, 16, cutoffs=cutoffs, shrink=shrink)
    head, counts = AdaptiveHead(embedding), [9, 7, 5, 4, 3, 3, 2, 1, 1, 1]
    targets = torch.arange(10).repeat_interleave(torch.tensor(counts))[None]
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        head.nats(torch.randn(1, sum(counts), 16), targets)
    config = CutoffConfig(clusters=len(cutoffs), dim=16, shrink=shrink)
    assert counter.get_total_flops() / 2 / sum(counts) == pytest.approx(
        cutoff_cost(counts, cutoffs, config)
    )


def test_tying_shares_parameters_and_widths_shrink() -> None:
    # Tables 3x4, 3x2, 4x1; projections 4x4, 4x2, 4x1; bias 10; two symbols of 4 + 1.
    tables, projections, rest = 12 + 6 + 4, 16 + 8 + 4, 10 + 10
    sizes = {
        ("all", True): tables + projections,
        ("tails", True): tables + projections + 16,
        ("none", True): tables + 2 * projections,
        ("tails", False): 2 * tables + projections + 16,
    }
    for (tied_projections, tied), expected in sizes.items():
        both = pair(shrink=2, tied=tied, tied_projections=tied_projections)  # type: ignore[arg-type]
        assert count(*both) == expected + rest
    assert count(*pair(shrink=1)) == 40 + rest
    assert count(*pair((), shrink=1)) == 40 + 10


def test_the_published_word_models_of_adaptive_span_have_the_right_size() -> None:
    with torch.device("meta"):
        embedding = AdaptiveEmbedding(267_735, 512, cutoffs=(20_000, 40_000, 200_000), shrink=4)
        head = AdaptiveHead(embedding, tied_projections="all")
    tables = 20_000 * 512 + 20_000 * 128 + 160_000 * 32 + 67_735 * 8
    assert embedding.widths == [512, 128, 32, 8]
    assert count(embedding, head) == tables + 512 * (512 + 128 + 32 + 8) + 267_735 + 3 * 513


def test_half_precision_losses_are_float32() -> None:
    embedding, head = (module.bfloat16() for module in pair(shrink=2))
    ids = torch.tensor([[0, 4, 9]])
    assert head.nats(embedding(ids), ids).dtype == torch.float32
    assert head.logits(embedding(ids)).dtype == torch.float32


@pytest.mark.parametrize("cutoffs", [(0,), (5, 5), (6, 3), (10,), (4, 12)])
def test_cut_offs_must_rise_inside_the_vocabulary(cutoffs: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="must rise"):
        clusters(10, cutoffs)
    with pytest.raises(ValueError, match="must rise"):
        AdaptiveEmbedding(10, 4, cutoffs=cutoffs)
    with pytest.raises(ValueError, match="no width"):
        AdaptiveEmbedding(10, 4, cutoffs=(2, 4), shrink=3)


def test_settings_are_refused_as_the_embedding_would_refuse_them() -> None:
    check_clusters(10, 4, (2, 4), 2)
    with pytest.raises(ValueError, match="no width for the last of 3"):
        check_clusters(10, 4, (2, 4), 3)
    with pytest.raises(ValueError, match="must rise"):
        check_clusters(10, 4, (4, 2), 1)


@pytest.mark.parametrize("cutoffs", [(), (3,), (3, 6)])
def test_the_first_softmax_has_a_symbol_for_each_later_cluster(cutoffs: tuple[int, ...]) -> None:
    _, head = pair(cutoffs)
    assert shortlist(10, cutoffs) == head._head(torch.zeros(4).double()).numel()
