"""Graphs of every family give the logits of the model, in chunks, before and after memory fills."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.export.hf.conftest import LETTERS
from tests.models.tiny import CONFIGS, VOCAB, tiny

from sparing.config import to_json, with_settings
from sparing.export.onnx.graph import LANES, GraphOptions, trace
from sparing.export.onnx.write import write_onnx
from sparing.export.trained import Trained
from sparing.models import FAMILIES
from sparing.models.api import LanguageModel
from sparing.models.onnx_runtime import open_export
from sparing.runs.recipes import recipe

CHUNK = 3
SMALLEST: dict[str, list[str]] = {
    "sha_rnn": ["depth=1", "attention_at=0", "memory=12"],
    "transformer_xl": ["depth=1", "memory=12"],
    "adaptive_span": ["depth=1", "span_limit=16"],
    "all-attention masked": ["depth=1", "span_limit=16"],
    "adaptive_span expire": ["depth=1", "span_limit=12", "ramp=4"],
    "awd_lstm": ["depth=1"],
    "awd_lstm qrnn": ["depth=1"],
    "mlstm": [],
    "stack with mtp": ["pattern=a", "windowed.span_limit=16", "windowed.span_starts=2,9"],
    "stack n-grams": ["pattern=xs", "relative.memory=12", "single_head.memory=12"],
}
"""One layer of every kind, with a memory that is soon full."""


def smallest(name: str) -> LanguageModel:
    """A tiny model of one layer, with lively weights."""
    torch.manual_seed(5)
    family, config = CONFIGS[name]
    model = FAMILIES[family].model(with_settings(config, SMALLEST[name]))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def run_graph(proto: Any, tokens_BN: torch.Tensor, state: Mapping[str, torch.Tensor]) -> np.ndarray:
    """Read tokens chunk by chunk; the state goes out of one call and into the next."""
    import onnxruntime

    session = onnxruntime.InferenceSession(proto.SerializeToString())
    carried = {name: tensor.numpy() for name, tensor in state.items()}
    pieces = []
    for chunk_BT in torch.split(tokens_BN, CHUNK, dim=1):
        given = {f"in.{name}": each for name, each in carried.items()}
        logits_BTV, *after = session.run(None, {"tokens": chunk_BT.numpy(), **given})
        carried = dict(zip(carried, after, strict=True))
        pieces.append(logits_BTV)
    return np.concatenate(pieces, axis=1)


def test_every_family_that_can_be_exported_is_among_them() -> None:
    assert {CONFIGS[name][0] for name in SMALLEST} == set(FAMILIES) - {"supernet"}


@pytest.mark.parametrize("name", SMALLEST)
def test_a_graph_gives_the_logits_of_its_model(name: str) -> None:
    model, deployed = smallest(name), smallest(name).requires_grad_(False)
    deployed.collapse()
    proto = trace(deployed, deployed.static_state(LANES, chunk=CHUNK), CHUNK)
    lanes = 2
    tokens_BN = torch.randint(VOCAB, (lanes, 20 * CHUNK))
    found = run_graph(proto, tokens_BN, deployed.static_state(lanes, chunk=CHUNK))
    state, wanted = model.initial_state(lanes, inference=True), []
    with torch.no_grad():
        for chunk_BT in torch.split(tokens_BN, CHUNK, dim=1):
            out = model(chunk_BT, state)
            state = out.state
            wanted.append(model.head.logits(out.hidden_BTD))
    np.testing.assert_allclose(found, torch.cat(wanted, dim=1), atol=2e-5, rtol=1e-5)


def test_a_graph_holds_nothing_of_the_machine_that_made_it() -> None:
    model = smallest("mlstm").requires_grad_(False)
    text = trace(model, model.static_state(LANES), 1).SerializeToString()
    assert b"sparing" not in text
    assert str(Path.home()).encode() not in text


def test_memories_are_read_by_what_writes_them_alone() -> None:
    """So an input and an output may share a place: no operator reads what is overwritten."""
    model = smallest("stack n-grams").requires_grad_(False)
    proto = trace(model, model.static_state(LANES, chunk=CHUNK), CHUNK)
    rings = [each.name for each in proto.graph.input if "ring." in each.name]
    assert rings
    for name in rings:
        readers = [
            node for node in proto.graph.node if name in node.input and node.op_type != "Shape"
        ]
        assert [list(node.output) for node in readers] == [[name.replace("in.", "out.")]]


def trained(model: LanguageModel) -> Trained:
    settings = to_json(recipe("enwik8_small"))
    return Trained(
        model=model.float(),
        vocab=LETTERS,
        settings=settings,
        results={},
        records={},
        checkpoint="best",
        step=1,
    )


def test_a_model_without_memory_is_exported_and_read_again(tmp_path: Path) -> None:
    torch.manual_seed(5)
    _, config = CONFIGS["sha_rnn"]
    model = FAMILIES["sha_rnn"].model(
        with_settings(config, ["depth=1", "attention_at=0", "memory=0"])
    )
    found = write_onnx(trained(model.eval()), tmp_path / "out", GraphOptions(chunk=CHUNK))
    assert found.largest_difference < 1e-4
    exported, tokens_BT = open_export(tmp_path / "out"), torch.randint(VOCAB, (2, 2 * CHUNK + 1))
    with torch.no_grad():
        wanted = model.head.logits(model(tokens_BT, model.initial_state(2)).hidden_BTD)
    logits = exported(tokens_BT, exported.initial_state(2)).hidden_BTD
    torch.testing.assert_close(logits, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.soak
@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize(
    "name", [name for name, (kind, _) in CONFIGS.items() if kind != "supernet"]
)
def test_every_variant_can_be_exported(name: str, int8: bool, tmp_path: Path) -> None:
    options = replace(GraphOptions(chunk=4), int8=int8)
    found = write_onnx(trained(tiny(name)), tmp_path / "out", options)
    assert int8 or found.largest_difference < 1e-4
