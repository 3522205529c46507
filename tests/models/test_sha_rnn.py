"""SHA-RNN against the original program's numbers and the formulas of its report."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from sparing.models.cost import cost
from sparing.models.sha_rnn import SHARNN, SHARNNConfig

GOLDEN = Path(__file__).parents[1] / "golden"
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
        torch.testing.assert_close(out.hidden_BTD.transpose(0, 1), golden[where + "hidden"], **close)
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
    [((2,), 53_773_517, 51_674_317), ((0, 1, 2, 3), 63_247_565, 54_850_765), ((), 50_615_501, 50_615_501)],  # noqa: E501
)
def test_parameter_counts_are_the_originals_less_what_nothing_uses(
    attention_at: tuple[int, ...], training: int, deployed: int
) -> None:
    with torch.device("meta"):
        price = cost(SHARNN(SHARNNConfig(vocab_size=205, attention_at=attention_at)))
    assert (price.parameters_training, price.parameters_deployed) == (training, deployed)
