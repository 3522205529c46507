"""SHA-RNN against the original program's numbers and the formulas of its report."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from sparing.models.cost import cost
from sparing.models.sha_rnn.config import SHARNNConfig
from sparing.models.sha_rnn.model import SHARNN
from sparing.nn.attention.single_head import OverparamGate, to_vector_gate
from sparing.nn.feedforward import Boom

GOLDEN = Path(__file__).parents[2] / "golden"
TINY = SHARNNConfig(vocab_size=11, dim=8, depth=3, boom_dim=16, attention_at=(1,), memory=24)

RENAMED = {
    "lnstart": "norm",
    "rnn": "core.cell",
    "lnmid": "attend.norm_query",
    "lnmem": "attend.norm_memory",
    "lnff": "expand.norm_skip",
    "lnxff": "expand.norm_input",
    "ff.linear1": "expand.boom.widen",
    "attn.qln": "attend.attention.query_norm",
    "attn.qs": "attend.attention.query_gate.logit",
    "attn.ks": "attend.attention.key_gate.logit",
    "attn.vs": "attend.attention.value_gate.logit",
    "attn.vq.l1": "attend.attention.value_gate.mix",
    "attn.q": "attend.attention.query",
}


def ours(theirs: str) -> str:
    """Our name of one of the original's parameters."""
    if theirs == "encoder.weight":
        return "embedding.weight"
    if theirs == "decoder.bias":
        return "head.bias"
    blocks, layer, rest = theirs.split(".", 2)
    old = next(name for name in RENAMED if rest == name or rest.startswith(name + "."))
    return f"{blocks}.{layer}.{RENAMED[old]}{rest.removeprefix(old)}"


def original(name: str) -> tuple[SHARNN, dict[str, Tensor]]:
    with safe_open(GOLDEN / f"{name}.safetensors", "pt") as file:
        meta, tensors = file.metadata(), {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    config = SHARNNConfig(
        vocab_size=int(meta["vocab"]),
        dim=int(meta["embed"]),
        depth=int(meta["layers"]),
        boom_dim=int(meta["boom"]),
        attention_at=tuple(json.loads(meta["attention_layers"])),
        memory=int(meta["window"]),
    )
    model = SHARNN(config).double().eval()
    parameters = dict(model.named_parameters())
    for key, value in tensors.items():
        if key.startswith("weight.") and key != "weight.decoder.weight":
            name = ours(key.removeprefix("weight."))
            if name in parameters:
                parameters[name].data.copy_(value.view_as(parameters[name]))
    return model, tensors


@pytest.mark.parametrize("name", ["sha_rnn_single", "sha_rnn_all"])
def test_the_original_programs_numbers_are_reproduced(name: str) -> None:
    model, golden = original(name)
    tokens_BN, state = golden["tokens"].T, model.initial_state(golden["tokens"].size(1))
    close = {"rtol": 0, "atol": 1e-9}
    for number in range(4):
        piece = slice(16 * number, 16 * number + 16)
        out = model(tokens_BN[:, piece], state)
        targets_BT = tokens_BN[:, piece.start + 1 : piece.stop + 1]
        loss = model.head.nats(out.hidden_BTD, targets_BT).mean()
        where, state = f"segment{number}.", out.state
        torch.testing.assert_close(
            out.hidden_BTD.transpose(0, 1), golden[where + "hidden"], **close
        )
        torch.testing.assert_close(
            model.head.logits(out.hidden_BTD).transpose(0, 1), golden[where + "logits"], **close
        )
        torch.testing.assert_close(loss, golden[where + "loss_nats"].view(()), **close)
        check_state(state, {k: v for k, v in golden.items() if k.startswith(where)}, where)
    loss.backward()
    gradients = {k.removeprefix("grad."): v for k, v in golden.items() if k.startswith("grad.")}
    parameters = dict(model.named_parameters())
    assert {ours(key) for key in gradients} == set(parameters)
    for key, value in gradients.items():
        gradient = parameters[ours(key)].grad
        assert gradient is not None, key
        torch.testing.assert_close(gradient, value.view_as(gradient), **close)


def check_state(state: dict[str, Tensor], golden: dict[str, Tensor], where: str) -> None:
    compared = 0
    for key, value in golden.items():
        name = key.removeprefix(where)
        if name.startswith("lstm"):
            layer, part = name.removeprefix("lstm").split(".")
            ours = state[f"blocks.{layer}.{'hidden' if part == 'h' else 'cell'}"]
            torch.testing.assert_close(ours, value[0], rtol=0, atol=1e-9)
        elif name.startswith("memory"):
            ours = state[f"blocks.{name.removeprefix('memory')}.memory"]
            torch.testing.assert_close(ours, value.transpose(0, 1), rtol=0, atol=1e-9)
        else:
            continue
        compared += 1
    assert compared == len(state)


@pytest.mark.parametrize(
    ("attention_at", "training", "deployed"),
    [
        ((2,), 53_773_517, 51_674_317),
        ((0, 1, 2, 3), 63_247_565, 54_850_765),
        ((), 50_615_501, 50_615_501),
    ],
)
def test_parameter_counts_are_the_originals_less_what_nothing_uses(
    attention_at: tuple[int, ...], training: int, deployed: int
) -> None:
    with torch.device("meta"):
        counted = cost(SHARNN(SHARNNConfig(vocab_size=205, attention_at=attention_at)))
    assert (counted.parameters_training, counted.parameters_deployed) == (training, deployed)


def test_norm_gains_start_at_one_and_matrices_small() -> None:
    torch.manual_seed(0)
    model = SHARNN(SHARNNConfig(vocab_size=205, dim=256, boom_dim=1024))
    for name, parameter in model.named_parameters():
        if "norm" in name:
            assert (parameter == (1.0 if name.endswith("weight") else 0.0)).all(), name
    assert all(m.eps == 1e-12 for m in model.modules() if isinstance(m, torch.nn.LayerNorm))
    for small in (model.embedding.weight, model.blocks[0].expand.boom.widen.weight):
        assert small.std().item() == pytest.approx(0.1 / 16, rel=0.05)
    recurrent = model.blocks[0].core.cell.weight_hh_l0
    assert recurrent.abs().max() <= 1 / 16
    assert recurrent.std().item() == pytest.approx(1 / 16 / 3**0.5, rel=0.05)
    attention = model.blocks[2].attend.attention
    assert (attention.query_gate() == 0.5).all()
    assert (attention.key_gate() == 0.5).all()


def test_gelu_is_the_sigmoid_form_and_boom_sums_its_chunks() -> None:
    boom = Boom(2, 4, dropout=0.0)
    with torch.no_grad():
        boom.widen.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0], [0.0, -1.0]]))
        boom.widen.bias.zero_()
    x, y = 0.7, -0.3

    def quick(value: float) -> float:
        return value / (1 + math.exp(-1.702 * value))

    expected = torch.tensor([[[quick(x) + quick(2 * x), quick(y) + quick(-y)]]])
    torch.testing.assert_close(boom(torch.tensor([[[x, y]]])), expected)


def test_the_value_gate_is_the_formula_of_the_code() -> None:
    gate = OverparamGate(3)
    torch.nn.init.normal_(gate.logit)
    candidate, forget = gate.mix(torch.sigmoid(gate.logit)).chunk(2)
    torch.testing.assert_close(gate(), torch.tanh(candidate) * torch.sigmoid(forget))
    torch.testing.assert_close(to_vector_gate(gate)(), gate())


@pytest.mark.parametrize(
    ("window", "segments", "keys", "stored"),
    [
        # Keys seen by each segment and memory kept after it: write trims to the window, entry to
        # the window less the segment.
        (40, [16, 16, 16, 16], [16, 32, 40, 40], [16, 32, 40, 40]),
        (5, [2, 3, 1, 5, 8, 1], [2, 5, 5, 5, 8, 5], [2, 5, 5, 5, 5, 5]),
    ],
)
def test_memory_is_trimmed_to_the_window(
    window: int, segments: list[int], keys: list[int], stored: list[int]
) -> None:
    block = SHARNN(replace(TINY, memory=window)).eval().blocks[1]
    state = {name: torch.zeros(1, 8) for name in block.core.state_names}
    state["memory"] = torch.zeros(1, 0, 8)
    for size, seen, kept in zip(segments, keys, stored, strict=True):
        hidden_BTD = torch.randn(1, size, 8)
        assert block.attend.weights(hidden_BTD, state).size(2) == seen
        _, state = block(hidden_BTD, state)
        assert state["memory"].size(1) == kept


def test_without_memory_it_backs_off_to_a_plain_recurrent_net() -> None:
    torch.manual_seed(0)
    model = SHARNN(TINY).double().eval()
    off = SHARNN(replace(TINY, memory=0)).double().eval()
    off.load_state_dict(model.state_dict())
    tokens_BT = torch.randint(0, 11, (1, 9))
    out = off(tokens_BT, off.initial_state(1))
    assert out.state["blocks.1.memory"].size(1) == 0
    hidden_BTD = off.embedding(tokens_BT)
    for block in off.blocks:
        hidden_BTD, _ = block.core(block.norm(hidden_BTD), (torch.zeros(1, 8).double(),) * 2)
        if block.attend is not None:
            hidden_BTD = block.attend.norm_query(hidden_BTD)
        hidden_BTD = block.expand(hidden_BTD)
    torch.testing.assert_close(out.hidden_BTD, hidden_BTD)


def test_attention_weights_are_where_the_head_looks() -> None:
    torch.manual_seed(0)
    model = SHARNN(TINY).eval()
    tokens_BT = torch.randint(0, 11, (2, 6))
    state = model(tokens_BT, model.initial_state(2)).state
    weights = model.attention_weights(tokens_BT, state)
    assert set(weights) == {1}
    assert weights[1].shape == (2, 1, 6, 12)
    torch.testing.assert_close(weights[1].sum(-1), torch.ones(2, 1, 6))
    assert not weights[1][:, 0, 0, 7:].any()


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_dropout_acts_in_training_only(rate: float) -> None:
    torch.manual_seed(0)
    dropped = {"dropout_input": rate, "dropout_hidden": rate, "dropout_output": rate}
    model, tokens_BT = SHARNN(replace(TINY, **dropped)), torch.randint(0, 11, (2, 6))

    def hidden() -> Tensor:
        return model(tokens_BT, model.initial_state(2)).hidden_BTD

    assert torch.equal(hidden(), hidden()) == (rate == 0)
    model.eval()
    assert torch.equal(hidden(), hidden())


@torch.no_grad()
def test_a_static_state_without_memory_holds_nothing_empty_and_changes_no_answer() -> None:
    off = SHARNN(replace(TINY, memory=0)).double().eval()
    tokens_BT = torch.randint(0, 11, (2, 12), generator=torch.Generator().manual_seed(3))
    static = off.static_state(2)
    assert all(tensor.numel() for tensor in static.values())
    carried = off.initial_state(2)
    for piece_BT in tokens_BT.split(5, dim=1):
        found, wanted = off(piece_BT, static), off(piece_BT, carried)
        assert found.state.keys() == static.keys()
        torch.testing.assert_close(found.hidden_BTD, wanted.hidden_BTD)
        reset = off.reset_lanes(found.state, torch.tensor([True, False]))
        assert reset.keys() == static.keys()
        static, carried = found.state, wanted.state
