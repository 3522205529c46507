"""SHA-RNN and Transformer-XL: pickled modules of the originals become runs with equal numbers."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

from sparing.device import Hardware
from sparing.errors import UserError
from sparing.models.api import LanguageModel
from sparing.runs.folder import load_model, open_run
from sparing.runs.released.alphabets import ENWIK8_BY_FREQUENCY
from sparing.runs.released.sha_rnn import import_sha_rnn
from sparing.runs.released.transformer_xl import import_transformer_xl

GOLDEN = Path(__file__).parents[2] / "golden"
CPU = Hardware(torch.device("cpu"), "float32")
IMPORTERS = {"sha_rnn": import_sha_rnn, "transformer_xl": import_transformer_xl}
TABLES = (
    "encoder.weight",
    "decoder.weight",
    "decoder.bias",
    "word_emb.emb_layers.0.weight",
    "crit.out_layers.0.weight",
    "crit.out_layers.0.bias",
)


def golden(name: str) -> dict[str, Tensor]:
    with safe_open(GOLDEN / f"{name}.safetensors", "pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118


class TheirModule(nn.Module):
    """A class that only the original program knows, with attributes besides its tensors."""


def as_module(weights: dict[str, Tensor], **attributes: Any) -> nn.Module:
    """Whole modules with these state dict names, as the originals pickle them."""
    root = TheirModule()
    for name, tensor in weights.items():
        *path, last = name.split(".")
        owner: nn.Module = root
        for each in path:
            if each not in owner._modules:
                owner.add_module(each, TheirModule())
            owner = owner._modules[each] or root
        owner.register_parameter(last, nn.Parameter(tensor))
    for name, value in attributes.items():
        setattr(root, name, value)
    return root


def with_rows(weights: dict[str, Tensor], rows: int) -> dict[str, Tensor]:
    """Tables grown to the size of a real vocabulary; the first rows stay."""
    grown = dict(weights)
    for name in TABLES:
        if name in weights:
            table = weights[name]
            more = torch.zeros(rows - len(table), *table.shape[1:], dtype=table.dtype)
            grown[name] = torch.cat([table, more])
    return grown


def sha_rnn(name: str = "sha_rnn_single", **extra: Tensor) -> nn.Module:
    weights = {k.removeprefix("weight."): v for k, v in golden(name).items() if "weight." in k[:7]}
    unused = {"blocks.2.attn.qkvs": torch.zeros(1, 3, 16), "blocks.2.attn.r_gate": torch.ones(1)}
    return as_module(with_rows({**weights, **unused, **extra}, 205), num_max_positions=40)


def transformer_xl(name: str = "transformer_xl", **settings: Any) -> nn.Module:
    weights = {k.removeprefix("weight."): v for k, v in golden(name).items() if "weight." in k[:7]}
    module = as_module(with_rows(weights, 204), mem_len=12, **settings)
    module.register_buffer("unused", None)
    return module


def write(data: Any, path: Path, *, legacy: bool = True) -> Path:
    torch.save(data, path, _use_new_zipfile_serialization=not legacy)
    return path


def imported(program: str, file: Path, out: Path) -> LanguageModel:
    IMPORTERS[program](file, out, {"commit": None})
    model = load_model(open_run(out), CPU)
    model.eval()
    return model


@pytest.mark.filterwarnings("ignore:Couldn't retrieve source code")
@pytest.mark.parametrize("legacy", [True, False])
@pytest.mark.parametrize("name", ["sha_rnn_single", "sha_rnn_all"])
def test_sha_rnn_keeps_its_numbers(name: str, legacy: bool, tmp_path: Path) -> None:
    file = write([sha_rnn(name), nn.CrossEntropyLoss()], tmp_path / "model.pt", legacy=legacy)
    model, expected = imported("sha_rnn", file, tmp_path / "run"), golden(name)
    state = model.initial_state(expected["tokens"].size(1))
    for number in range(4):
        tokens_BT = expected["tokens"].T[:, 16 * number : 16 * number + 16]
        out = model(tokens_BT, state)
        state = out.state
        hidden = out.hidden_BTD.transpose(0, 1).double()
        torch.testing.assert_close(hidden, expected[f"segment{number}.hidden"], rtol=0, atol=1e-5)
        logits = model.head.logits(out.hidden_BTD).transpose(0, 1)[..., :17].double()
        torch.testing.assert_close(logits, expected[f"segment{number}.logits"], rtol=0, atol=1e-4)


@pytest.mark.filterwarnings("ignore:Couldn't retrieve source code")
def test_sha_rnn_numbers_bytes_by_falling_frequency(tmp_path: Path) -> None:
    imported("sha_rnn", write([sha_rnn()], tmp_path / "model.pt"), tmp_path / "run")
    run = open_run(tmp_path / "run")
    symbols = bytes(run.vocab().to_json()["symbols"])
    assert run.config().data.symbol_order == "frequency"
    assert len(set(symbols)) == len(symbols) == 205
    # Of the 90,000,000 bytes of the training text 1,017,182 are newlines, the original's <eos>.
    assert symbols[:24] == b" etaionrslhdcu][mpgf\nyb'"


@pytest.mark.filterwarnings("ignore:Couldn't retrieve source code")
@pytest.mark.parametrize("form", ["module", "parallel", "state dict"])
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("transformer_xl", {"clamp_len": -1, "same_length": False}),
        ("transformer_xl_same_length_clamp", {"clamp_len": 10, "same_length": True}),
    ],
)
def test_transformer_xl_keeps_its_numbers(
    name: str, settings: dict[str, Any], form: str, tmp_path: Path
) -> None:
    module: Any = transformer_xl(name, **settings)
    if form == "state dict" and settings["same_length"]:
        pytest.skip("a state dict does not say how long memory is")
    data = {
        "module": module,
        "parallel": as_parallel(module),
        "state dict": dict(module.state_dict()),
    }[form]
    model, expected = (
        imported("transformer_xl", write(data, tmp_path / "model.pt"), tmp_path / "run"),
        golden(name),
    )
    vocab = open_run(tmp_path / "run").vocab()
    theirs = torch.tensor(vocab.encode(ENWIK8_BY_FREQUENCY[:13]).astype("int64"))
    state = model.initial_state(expected["tokens"].size(1))
    segments = 1 if form == "state dict" else 5
    for number in range(segments):
        tokens_BT = theirs[expected["tokens"].T[:, 8 * number : 8 * number + 8]]
        out = model(tokens_BT, state)
        state, stored = out.state, expected[f"segment{number}.memory2"]
        hidden = out.hidden_BTD.transpose(0, 1).double()
        torch.testing.assert_close(hidden, stored[-8:], rtol=0, atol=1e-5)


def as_parallel(module: nn.Module) -> nn.Module:
    wrapper = TheirModule()
    wrapper.add_module("module", module)
    return wrapper


class Bomb:
    """Runs a command when it is unpickled by somebody careless."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


@pytest.mark.filterwarnings("ignore:Couldn't retrieve source code")
@pytest.mark.parametrize("legacy", [True, False])
def test_nothing_in_a_file_is_run(tmp_path: Path, legacy: bool) -> None:
    module = sha_rnn()
    module.trap = Bomb(tmp_path / "exploded")  # type: ignore[assignment]
    file = write([module, Bomb(tmp_path / "exploded")], tmp_path / "model.pt", legacy=legacy)
    imported("sha_rnn", file, tmp_path / "run")
    assert not (tmp_path / "exploded").exists()


def scripted(path: Path) -> Path:
    torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2)).save(str(path))
    return path


Make = Callable[[Path], Path]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("program", "make", "complaint"),
    [
        ("sha_rnn", lambda p: write([], p), "holds a list"),
        ("sha_rnn", lambda p: write(7, p), "holds a int"),
        ("sha_rnn", lambda p: write({}, p), "holds no tensors"),
        ("sha_rnn", lambda p: write({"a": 3}, p), "tensors by name"),
        ("sha_rnn", lambda p: write(transformer_xl(), p), "has no encoder.weight"),
        ("transformer_xl", lambda p: write([sha_rnn()], p), "has no word_emb"),
        ("sha_rnn", scripted, "cannot be read safely"),
        (
            "sha_rnn",
            lambda p: write(sha_rnn(**{"blocks.0.odd": torch.ones(1)}), p),
            "blocks.0.odd is unknown to SHA-RNN",
        ),
        (
            "sha_rnn",
            lambda p: write(sha_rnn(**{"decoder.weight": torch.ones(17, 16).double()}), p),
            "does not share the embedding",
        ),
        (
            "sha_rnn",
            lambda p: write(sha_rnn(**{"blocks.1.lnff.bias": torch.full((16,), torch.nan)}), p),
            "not finite",
        ),
        (
            "transformer_xl",
            lambda p: write(as_module({"word_emb.emb_layers.0.weight": torch.ones(13, 4)}), p),
            "has no r_w_bias",
        ),
    ],
)
def test_a_file_that_does_not_fit_is_refused(
    program: str, make: Make, complaint: str, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with pytest.raises(UserError, match=complaint) as caught:
        IMPORTERS[program](make(tmp_path / "model.pt"), out, {})
    assert "\n" not in str(caught.value)
    assert not out.exists()
