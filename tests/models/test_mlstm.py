"""Multiplicative LSTM: size, formulas, dropout, initial values."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tests.training.toy import Shelf, budget, callbacks, toy_training
from torch import Tensor

from sparing.models.cost import cost
from sparing.models.mlstm import MLSTM, MLSTMConfig
from sparing.training import journal
from sparing.training.loop import fit
from sparing.training.schedule import ScheduleConfig

TINY = MLSTMConfig(vocab_size=11, dim=4, hidden_dim=6, dropout_input=0.0, dropout_hidden=0.0)


def test_parameter_counts_to_the_unit() -> None:
    with torch.device("meta"):
        counted = cost(MLSTM(MLSTMConfig(vocab_size=205)))
    assert counted.parameters_training == 45_495_405
    assert counted.parameters_deployed == 45_495_405 - 10 * 2800


def by_hand(model: MLSTM, tokens_BT: Tensor, mask_BD: Tensor) -> Tensor:
    layer, outputs = model.layer, []
    h = c = torch.zeros(tokens_BT.size(0), 6)
    for tokens in tokens_BT.unbind(1):
        x = model.embedding(tokens)
        m = F.linear(x, layer.input_factor()) * F.linear(h, layer.hidden_factor())
        gates = F.linear(x, layer.input_gates()) + F.linear(m, layer.hidden_gates()) + layer.bias
        i, f, o, u = gates.chunk(4, dim=-1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(u)
        h = torch.sigmoid(o) * torch.tanh(c) * mask_BD
        outputs.append(h)
    return torch.stack(outputs, dim=1)


def test_it_is_the_formula() -> None:
    torch.manual_seed(0)
    model, tokens_BT = MLSTM(TINY), torch.randint(0, 11, (2, 7))
    out = model(tokens_BT, model.initial_state(2))
    torch.testing.assert_close(out.hidden_BTD, by_hand(model, tokens_BT, torch.ones(2, 6)))


def test_dropped_hidden_channels_are_zero_everywhere_and_fed_back_so() -> None:
    torch.manual_seed(0)
    model, tokens_BT = MLSTM(replace(TINY, dropout_hidden=0.5)), torch.randint(0, 11, (3, 7))
    out = model(tokens_BT, model.initial_state(3))
    gone = out.hidden_BTD[:, 0] == 0
    assert gone.any()
    assert not gone.all()
    mask_BD = (~gone).float() * 2
    torch.testing.assert_close(out.hidden_BTD, by_hand(model, tokens_BT, mask_BD))
    assert torch.equal(out.state["hidden"] == 0, gone)
    assert out.state["cell"].all()
    model.eval()
    whole = model(tokens_BT, model.initial_state(3)).hidden_BTD
    torch.testing.assert_close(whole, by_hand(model, tokens_BT, torch.ones(3, 6)))


def test_initial_values() -> None:
    torch.manual_seed(0)
    model = MLSTM(MLSTMConfig(vocab_size=30, dim=20, hidden_dim=40))
    assert model.embedding.weight.abs().max().item() <= 0.2
    assert model.embedding.weight.std().item() == pytest.approx(0.4 / 12**0.5, rel=0.1)
    i, f, o, u = model.layer.bias.chunk(4)
    assert (f == 3).all()
    assert not torch.cat([i, o, u]).any()
    weight = model.head.weight
    torch.testing.assert_close(weight @ weight.T, torch.eye(30), atol=1e-5, rtol=0)
    assert not model.head.bias.any()


def test_a_collapsed_model_loads_into_the_config_it_names() -> None:
    model = MLSTM(TINY)
    model.collapse()
    assert not model.config.normed
    MLSTM(model.config).load_state_dict(model.state_dict())


def test_muon_sees_the_gates_as_four_matrices() -> None:
    blocks = {
        name: group.blocks
        for group in MLSTM(TINY).parameter_groups()
        if group.role == "matrix"
        for name, _ in group.named
    }
    assert blocks == {
        "layer.input_factor.weight": 1,
        "layer.hidden_factor.weight": 1,
        "layer.input_gates.weight": 4,
        "layer.hidden_gates.weight": 4,
    }


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [({"dropout_hidden": 1.0}, "dropout_hidden"), ({"hidden_dim": 0}, "at least 1")],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        replace(TINY, **wrong)


def test_it_learns_the_toy_text(tmp_path: Path) -> None:
    torch.manual_seed(1)
    config = MLSTMConfig(vocab_size=7, dim=8, hidden_dim=16, dropout_input=0.1, dropout_hidden=0.05)
    run = toy_training(MLSTM(config))
    fit(run, budget(steps=150), ScheduleConfig(shape="constant"), callbacks(tmp_path, Shelf()))
    losses = [entry["nats_per_token"] for entry in journal.read(tmp_path / "metrics.jsonl")[:-1]]
    assert losses[0] == pytest.approx(1.95, abs=0.2)
    assert sum(losses[-20:]) / 20 < 0.5
