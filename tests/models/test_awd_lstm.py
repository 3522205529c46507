"""AWD-LSTM and AWD-QRNN: sizes, places of dropout, penalties."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tests.training.toy import Shelf, budget, callbacks, toy_training

from sparing.models.awd_lstm import AWDLSTM, RATES, AWDLSTMConfig
from sparing.models.cost import cost
from sparing.nn.adaptive_softmax import AdaptiveHead
from sparing.training import journal
from sparing.training.loop import fit
from sparing.training.schedule import ScheduleConfig

OFF = dict.fromkeys(RATES, 0.0)
QRNN = AWDLSTMConfig(vocab_size=267_735, hidden_dim=2500, depth=4, core="qrnn")
TINY = AWDLSTMConfig(vocab_size=11, dim=4, hidden_dim=6, **OFF)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (AWDLSTMConfig(vocab_size=205, hidden_dim=1840), 47_270_045),
        (AWDLSTMConfig(vocab_size=33_278), 33_556_078),
        (QRNN, 153_885_435),
        (replace(QRNN, cutoffs=(2_800, 20_000, 76_000)), 153_885_435 + 3 * (400 + 1)),
    ],
)
def test_parameter_counts_to_the_unit(config: AWDLSTMConfig, expected: int) -> None:
    with torch.device("meta"):
        counted = cost(AWDLSTM(config))
    assert counted.parameters_training == counted.parameters_deployed == expected


def test_widths_run_from_the_embedding_through_the_hidden_layers_and_back() -> None:
    assert AWDLSTMConfig(vocab_size=2).widths == (400, 1150, 1150, 400)
    assert replace(TINY, depth=1).widths == (4, 4)
    assert replace(TINY, depth=2, tied=False).widths == (4, 6, 6)
    model = AWDLSTM(replace(TINY, depth=2, tied=False))
    assert model.head.weight.shape == (11, 6)
    tied = AWDLSTM(TINY)
    assert tied.head.weight is tied.embedding.weight


def test_tables_begin_uniform_and_the_bias_at_zero() -> None:
    torch.manual_seed(0)
    model = AWDLSTM(AWDLSTMConfig(vocab_size=300, dim=40, hidden_dim=50, tied=False))
    for table in (model.embedding.weight, model.head.weight):
        assert table.abs().max().item() <= 0.1
        assert table.std().item() == pytest.approx(0.2 / 12**0.5, rel=0.05)
    assert not model.head.bias.any()


def test_a_split_softmax_ties_every_cluster_and_starts_its_symbols_at_zero() -> None:
    torch.manual_seed(0)
    split = AWDLSTM(replace(TINY, cutoffs=(3, 7)))
    assert isinstance(split.head, AdaptiveHead)
    assert split.head.weights[0] is split.embedding.weights[0]
    assert 0.05 < split.embedding.weights[0].abs().max().item() <= 0.1
    assert split.head.symbols is not None
    assert not any(tensor.any() for tensor in (*split.head.symbols.parameters(), split.head.bias))
    # An unsplit softmax with the same numbers agrees within the short list, up to a constant.
    hidden = torch.randn(5, 4)
    logits, plain = split.head.logits(hidden), F.linear(hidden, split.embedding.weights[0])
    torch.testing.assert_close(logits.exp().sum(-1), torch.ones(5))
    torch.testing.assert_close(logits[:, :3].softmax(-1), plain[:, :3].softmax(-1))
    torch.testing.assert_close(logits[:, 7:].softmax(-1), plain[:, 7:].softmax(-1))


def test_a_split_softmax_costs_its_short_list() -> None:
    plain, split = (AWDLSTM(config) for config in (TINY, replace(TINY, cutoffs=(3, 7))))
    assert plain.flops_per_token() - split.flops_per_token() == 2 * 4 * (11 - 3 - 2)


def test_muon_would_see_the_gates_of_a_qrnn_one_by_one() -> None:
    model = AWDLSTM(replace(TINY, core="qrnn", cutoffs=(3, 7)))
    roles = {name: (g.role, g.blocks) for g in model.parameter_groups() for name, _ in g.named}
    assert roles["layers.0.gates.weight"] == ("matrix", 3)
    assert roles["embedding.tables.0.weight"] == ("table", 1)
    assert roles["head.symbols.weight"] == ("table", 1)


def test_the_model_is_three_stacked_lstms() -> None:
    torch.manual_seed(0)
    model, tokens_BT = AWDLSTM(TINY).eval(), torch.randint(0, 11, (2, 5))
    hidden = F.embedding(tokens_BT, model.embedding.weight)
    out = model(tokens_BT, model.initial_state(2))
    for layer, core in enumerate(model.layers):
        hidden, (last, cell) = core.cell(hidden)
        torch.testing.assert_close(out.state[f"layers.{layer}.hidden"], last[0])
        torch.testing.assert_close(out.state[f"layers.{layer}.cell"], cell[0])
    torch.testing.assert_close(out.hidden_BTD, hidden)


def test_penalties_are_the_formulas_and_act_in_training_only() -> None:
    torch.manual_seed(0)
    config = replace(TINY, dropout_output=0.5, activation_penalty=2.0, change_penalty=3.0)
    model, tokens_BT = AWDLSTM(config), torch.randint(0, 11, (3, 6))
    seen = []
    model.layers[-1].register_forward_hook(lambda module, given, out: seen.append(out[0]))
    out = model(tokens_BT, model.initial_state(3))
    raw, dropped = seen[0], out.hidden_BTD
    assert (dropped == 0).any()
    expected = 2 * (dropped**2).mean() + 3 * ((raw[:, 1:] - raw[:, :-1]) ** 2).mean()
    torch.testing.assert_close(out.penalty, expected)
    assert out.penalty.requires_grad
    single = model(tokens_BT[:, :1], model.initial_state(3))
    torch.testing.assert_close(single.penalty, 2 * (single.hidden_BTD**2).mean())
    assert model.eval()(tokens_BT, model.initial_state(3)).penalty.item() == 0


@pytest.mark.parametrize("name", RATES)
def test_every_dropout_acts_in_training_only(name: str) -> None:
    torch.manual_seed(0)
    core = "qrnn" if name == "zoneout" else "lstm"
    model = AWDLSTM(replace(TINY, core=core, **{name: 0.5}))
    tokens_BT = torch.randint(0, 11, (2, 6))

    def hidden() -> torch.Tensor:
        return model(tokens_BT, model.initial_state(2)).hidden_BTD

    assert not torch.equal(hidden(), hidden())
    model.eval()
    assert torch.equal(hidden(), hidden())


def test_the_carried_state_is_not_dropped_from() -> None:
    torch.manual_seed(0)
    model = AWDLSTM(replace(TINY, dropout_output=0.5, dropout_hidden=0.5))
    state = model(torch.randint(0, 11, (3, 6)), model.initial_state(3)).state
    assert all(tensor.all() for tensor in state.values())


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"dropout_input": 1.0}, "dropout_input must be"),
        ({"depth": 0}, "must be at least 1"),
        ({"zoneout": 0.1}, "core=qrnn"),
        ({"change_penalty": -1.0}, "at least 0"),
        ({"cutoffs": (5, 3)}, "must rise"),
        ({"cutoffs": (3,), "tied": False}, "need a tied softmax"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        replace(TINY, **wrong)


@pytest.mark.parametrize("core", ["lstm", "qrnn"])
def test_it_learns_the_toy_text(core: str, tmp_path: Path) -> None:
    config = AWDLSTMConfig(
        vocab_size=7, dim=12, hidden_dim=16, core=core, depth=2,
        dropout_embedding=0.02, dropout_input=0.05, dropout_hidden=0.05, dropout_output=0.05,
        weight_drop=0.1, activation_penalty=0.01, change_penalty=0.01,
    )  # fmt: skip
    torch.manual_seed(1)
    run = toy_training(AWDLSTM(config))
    fit(run, budget(steps=250), ScheduleConfig(shape="constant"), callbacks(tmp_path, Shelf()))
    losses = [entry["nats_per_token"] for entry in journal.read(tmp_path / "metrics.jsonl")[:-1]]
    assert losses[0] == pytest.approx(1.95, abs=0.2)
    assert sum(losses[-20:]) / 20 < 0.6
