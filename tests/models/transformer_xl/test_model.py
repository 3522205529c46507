"""Transformer-XL against the original program's numbers and the formulas of its report."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from tests.training.toy import Shelf, budget, callbacks, toy_training
from torch import Tensor

from sparing.models.api import State
from sparing.models.cost import cost
from sparing.models.transformer_xl.config import TransformerXLConfig
from sparing.models.transformer_xl.model import TransformerXL
from sparing.nn.attention.position_table import sinusoids
from sparing.runs.recipes import RECIPES
from sparing.training import journal
from sparing.training.loop import fit
from sparing.training.schedule import ScheduleConfig

GOLDEN = Path(__file__).parents[2] / "golden"
FILES = ["transformer_xl", "transformer_xl_same_length_clamp"]
CLOSE: dict[str, Any] = {"rtol": 0, "atol": 1e-9}
TINY = TransformerXLConfig(
    vocab_size=11, dim=8, depth=3, heads=2, head_dim=4, ff_dim=16, memory=6, dropout=0.0
)
RENAMED = {
    "word_emb.emb_layers.0": "embedding",
    "crit.out_layers.0": "head",
    "r_w_bias": "bias.content",
    "r_r_bias": "bias.position",
    "layers": "blocks",
    "dec_attn.o_net": "attend.attention.output",
    "dec_attn.r_net": "attend.attention.position",
    "dec_attn.layer_norm": "attend.norm",
    "pos_ff.CoreNet.0": "feed_forward.widen",
    "pos_ff.CoreNet.3": "feed_forward.narrow",
    "pos_ff.layer_norm": "feed_forward.norm",
}


def ours(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The original's tensors under our names; its joint query, key and value matrix in three."""
    found = {}
    for name, tensor in theirs.items():
        if name == "crit.out_layers.0.weight":
            continue
        for old, new in RENAMED.items():
            name = name.replace(old, new)
        if "qkv_net" in name:
            parts = zip(("query", "key", "value"), tensor.chunk(3), strict=True)
            found |= {
                name.replace("dec_attn.qkv_net", f"attend.attention.{p}"): t for p, t in parts
            }
        else:
            found[name] = tensor
    return found


def original(name: str, **settings: Any) -> tuple[TransformerXL, dict[str, Tensor]]:
    with safe_open(GOLDEN / f"{name}.safetensors", "pt") as file:
        meta, tensors = file.metadata(), {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    clamp = int(meta["clamp_len"])
    config = TransformerXLConfig(
        vocab_size=int(meta["vocab"]),
        dim=int(meta["d_model"]),
        depth=int(meta["layers"]),
        heads=int(meta["heads"]),
        head_dim=int(meta["d_head"]),
        ff_dim=int(meta["inner"]),
        memory=int(meta["memory"]),
        clamp=clamp if clamp > 0 else None,
        same_length=meta["same_length"] == "True",
        norm=meta["norm"],
    )
    model = TransformerXL(replace(config, **settings)).double().eval()
    parameters = dict(model.named_parameters())
    weights = ours(part(tensors, "weight."))
    assert weights.keys() == parameters.keys()
    for key, parameter in parameters.items():
        parameter.data.copy_(weights[key])
    return model, tensors


def part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}


@pytest.mark.parametrize("name", FILES)
def test_the_original_program_s_numbers_are_reproduced(name: str) -> None:
    model, golden = original(name)
    tokens_BN, state = golden["tokens"].T, model.initial_state(2)
    last_BMD = torch.zeros(2, 0, 16).double()
    for number in range(5):
        expected, begin = part(golden, f"segment{number}."), 8 * number
        out = model(tokens_BN[:, begin : begin + 8], state)
        nats_BT = model.head.nats(out.hidden_BTD, tokens_BN[:, begin + 1 : begin + 9])
        state = out.state
        torch.testing.assert_close(nats_BT.T, expected["nll"], **CLOSE)
        for layer in range(2):
            memory = state[f"blocks.{layer}.memory"].transpose(0, 1)
            torch.testing.assert_close(memory, expected[f"memory{layer}"], **CLOSE)
        # The original also stores the last layer's output, which nothing reads; it is ours too.
        last_BMD = torch.cat([last_BMD, out.hidden_BTD.detach()], dim=1)[:, -12:]
        torch.testing.assert_close(last_BMD.transpose(0, 1), expected["memory2"], **CLOSE)
    nats_BT.mean().backward()
    gradients, parameters = ours(part(golden, "grad.")), dict(model.named_parameters())
    assert gradients.keys() == parameters.keys()
    for key, value in gradients.items():
        gradient = parameters[key].grad
        assert gradient is not None, key
        torch.testing.assert_close(gradient, value, **CLOSE)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("cache", ["auto", "kv"])
def test_cached_keys_and_values_give_the_original_s_losses_too(name: str, cache: str) -> None:
    model, golden = original(name, cache=cache)
    tokens_BN = golden["tokens"].T
    with torch.no_grad():
        state = model.initial_state(2, inference=True)
        assert set(state) == {f"blocks.{i}.{kind}" for i in (0, 1) for kind in ("keys", "values")}
        for number in range(5):
            begin = 8 * number
            out = model(tokens_BN[:, begin : begin + 8], state)
            nats_BT = model.head.nats(out.hidden_BTD, tokens_BN[:, begin + 1 : begin + 9])
            state = out.state
            torch.testing.assert_close(nats_BT.T, golden[f"segment{number}.nll"], **CLOSE)


def hidden_states(model: TransformerXL, tokens_BN: Tensor, sizes: list[int]) -> Tensor:
    state, pieces = model.initial_state(tokens_BN.size(0)), []
    for piece_BT in tokens_BN.split(sizes, dim=1):
        out = model(piece_BT, state)
        state, pieces = out.state, [*pieces, out.hidden_BTD]
    return torch.cat(pieces, dim=1)


def lively(**settings: Any) -> TransformerXL:
    torch.manual_seed(3)
    model = TransformerXL(replace(TINY, **settings)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def text(length: int) -> Tensor:
    return torch.randint(0, 11, (2, length), generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize("sizes", [[24], [5, 5, 5, 9], [1] * 24, [7, 1, 1, 1, 14]])
@pytest.mark.parametrize(
    "settings",
    [{}, {"norm": "pre"}, {"same_length": True}, {"clamp": 3}, {"memory": 0}, {"memory": 40}],
    ids=str,
)
def test_cached_keys_and_values_equal_re_projection(
    settings: dict[str, Any], sizes: list[int]
) -> None:
    model = lively(**settings)
    with torch.no_grad():
        model.config = replace(model.config, cache="hidden")
        projected = hidden_states(model, text(24), sizes)
        model.config = replace(model.config, cache="kv")
        torch.testing.assert_close(hidden_states(model, text(24), sizes), projected, **CLOSE)


@pytest.mark.parametrize("cache", ["hidden", "kv"])
@pytest.mark.parametrize("sizes", [[24], [1] * 24, [11, 2, 11]])
def test_of_one_length_the_answer_does_not_depend_on_segments(cache: str, sizes: list[int]) -> None:
    # Every query sees the last 6 keys at every layer, although memory is shorter than the text.
    model = lively(same_length=True, cache=cache)
    expected = hidden_states(model, text(24), [6, 6, 6, 6])
    torch.testing.assert_close(hidden_states(model, text(24), sizes), expected, **CLOSE)


def test_the_kept_position_table_follows_the_weights() -> None:
    model, changed = lively(cache="kv"), lively(cache="kv")
    with torch.no_grad():
        before = hidden_states(model, text(8), [4, 4])
        for net in (model, changed):
            net.blocks[1].attend.attention.position.weight.mul_(2)
        after = hidden_states(model, text(8), [4, 4])
        assert (after - before).abs().max() > 1e-3
        torch.testing.assert_close(after, hidden_states(changed, text(8), [4, 4]), **CLOSE)
    loss = model.head.nats(hidden_states(model, text(8), [4, 4]), text(8)).mean()
    loss.backward()
    torch.optim.AdamW(model.parameters(), lr=0.1, fused=True).step()
    with torch.no_grad():
        stepped = hidden_states(model, text(8), [4, 4])
    model._table.clear()
    with torch.no_grad():
        torch.testing.assert_close(stepped, hidden_states(model, text(8), [4, 4]), **CLOSE)


def test_memory_holds_layer_inputs_and_is_trimmed_after_use() -> None:
    model = lively()
    state, lengths = model.initial_state(2), []
    for size in (4, 4, 4, 9, 1):
        before, out = state, model(text(size), state)
        state = out.state
        lengths.append(state["blocks.0.memory"].size(1))
    assert lengths == [4, 6, 6, 6, 6]
    fed = model.embedding(text(1)) * 8**0.5
    torch.testing.assert_close(state["blocks.0.memory"][:, -1:], fed)
    torch.testing.assert_close(
        state["blocks.0.memory"][:, :-1], before["blocks.0.memory"][:, 1:], **CLOSE
    )
    assert not any(tensor.requires_grad for tensor in state.values())


def test_gradients_reach_the_projections_of_memory_but_not_memory() -> None:
    model, tokens_BT = lively(), text(3)
    state = model(text(6), model.initial_state(2)).state
    fed: State = {name: tensor.requires_grad_() for name, tensor in state.items()}
    model(tokens_BT, fed).hidden_BTD.square().sum().backward()
    with_memory = model.blocks[0].attend.attention.key.weight.grad
    assert with_memory is not None
    gradient = with_memory.clone()
    model.zero_grad()
    with torch.no_grad():
        cached = TransformerXL(replace(model.config, cache="kv")).double().eval()
        cached.load_state_dict(model.state_dict())
        kept = cached(text(6), cached.initial_state(2)).state
    cached(tokens_BT, kept).hidden_BTD.square().sum().backward()
    own = cached.blocks[0].attend.attention.key.weight.grad
    assert own is not None
    assert (gradient - own).abs().max() > 1e-6


@pytest.mark.parametrize("dim", [4, 6])
def test_positions_are_sines_then_cosines_of_the_clamped_distance(dim: int) -> None:
    codes = sinusoids(torch.tensor([3.0, 2.0, 1.0, 0.0]), dim)
    for row, distance in enumerate((3, 2, 1, 0)):
        for m in range(dim // 2):
            angle = torch.tensor(distance * 10000 ** (-2 * m / dim))
            torch.testing.assert_close(codes[row, m], angle.sin())
            torch.testing.assert_close(codes[row, dim // 2 + m], angle.cos())
    model = lively(clamp=2)
    rows = model._project(5)[1]
    torch.testing.assert_close(rows[0], rows[2])
    assert not torch.equal(rows[2], rows[3])


@pytest.mark.parametrize(
    ("recipe", "parameters"),
    [
        ("enwik8_transformer_xl", 41_055_436),
        ("enwik8_transformer_xl_large", 277_231_820),
        ("wikitext103_transformer_xl", 151_107_538),
        ("wikitext103_transformer_xl_large", 285_170_506),
    ],
)
def test_parameter_counts_are_the_original_s(recipe: str, parameters: int) -> None:
    with torch.device("meta"):
        counted = cost(TransformerXL(RECIPES[recipe]().model))
    assert counted.parameters_training == counted.parameters_deployed == parameters


def test_fresh_weights_are_the_original_s() -> None:
    torch.manual_seed(0)
    model = TransformerXL(
        TransformerXLConfig(vocab_size=900, dim=128, depth=2, cutoffs=(300, 600), shrink=2)
    )
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        else:
            spread = 0.01 if "projections" in name else 0.02
            mean = 1.0 if "norm" in name else 0.0
            assert parameter.std().item() == pytest.approx(spread, rel=0.25), name
            assert parameter.mean().item() == pytest.approx(mean, abs=0.01), name
    names = {name for name, _ in model.named_parameters()}
    assert {"bias.content", "bias.position", "head.symbols.weight"} <= names


@pytest.mark.parametrize("rate", ["dropout", "dropout_attention"])
def test_dropout_acts_in_training_only(rate: str) -> None:
    model = lively(**{rate: 0.5}).train()

    def hidden() -> Tensor:
        return model(text(6), model.initial_state(2)).hidden_BTD

    assert not torch.equal(hidden(), hidden())
    model.eval()
    assert torch.equal(hidden(), hidden())


def test_dropout_reaches_positions_and_memory() -> None:
    model = lively(dropout=0.5).train()
    rows = model._project(6)
    assert (rows[0] - model._project(6)[0]).abs().max() > 1e-3
    memory = model(text(40)[:1], model.initial_state(1)).state["blocks.0.memory"]
    assert (memory == 0).any()


def test_biases_of_heads_are_vectors_to_the_optimizer() -> None:
    roles = {
        name: group.role
        for settings in ({}, {"shared_bias": False})
        for group in lively(**settings).parameter_groups()
        for name, _ in group.named
    }
    assert roles["bias.content"] == roles["blocks.1.bias.position"] == "vector"
    assert roles["blocks.0.attend.attention.key.weight"] == "matrix"
    assert roles["embedding.weight"] == "table"


@pytest.mark.parametrize(
    "settings",
    [{"dim": 7}, {"memory": -1}, {"heads": 0}, {"dropout": 1.0}, {"cutoffs": (5, 5)},
     {"cutoffs": (11,)}, {"cutoffs": (2, 5), "shrink": 4}],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must|leaves"):
        replace(TINY, **settings)


@pytest.mark.parametrize("settings", [{}, {"cutoffs": (3,), "shrink": 2}, {"norm": "pre"}], ids=str)
def test_it_learns_a_text_that_repeats(settings: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = TransformerXL(replace(TINY, vocab_size=7, dim=16, depth=2, **settings))
    run = toy_training(model)
    assert (
        fit(run, budget(steps=150), ScheduleConfig(shape="constant"), callbacks(tmp_path, Shelf()))
        == 0
    )
    losses = [
        entry["nats_per_token"]
        for entry in journal.read(tmp_path / "metrics.jsonl")
        if entry["kind"] == "train"
    ]
    assert losses[0] > 1.5
    assert losses[-1] < 0.15


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_a_layer_compiles_in_one_piece() -> None:
    model = lively()
    state = model(text(4), model.initial_state(2)).state
    expected = model(text(5), state).hidden_BTD
    model.blocks[0].compile(dynamic=True, fullgraph=True, backend="eager")
    torch.testing.assert_close(model(text(5), state).hidden_BTD, expected)
