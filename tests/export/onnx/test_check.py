"""Graphs that answer differently are refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models.tiny import VOCAB, tiny

from sparing.errors import UserError
from sparing.export.onnx import check
from sparing.export.onnx.check import check_graphs
from sparing.models.api import Head, LanguageModel, Output, State
from sparing.models.onnx_runtime import LogitsHead

CHUNK = 8


class Graphs(LanguageModel):
    """What an exact export would answer, but for what is added to the logits of some calls."""

    head: Head

    def __init__(self, added: float = 0.0, *, calls: range = range(0)) -> None:
        super().__init__()
        self.exact, self.head = tiny("sha_rnn").float(), LogitsHead()
        self.added, self.calls, self.lengths = added, calls, list[tuple[int, ...]]()

    def static_state(self, batch: int, *, chunk: int = 1) -> State:
        return self.exact.initial_state(batch, inference=True)

    def forward(self, tokens_BT: torch.Tensor, state: State) -> Output:
        out: Output = self.exact(tokens_BT, state)
        logits_BTV = self.exact.head.logits(out.hidden_BTD)
        if len(self.lengths) in self.calls:
            logits_BTV[..., 0] += self.added
        self.lengths.append(tuple(tokens_BT.shape))
        return out._replace(hidden_BTD=logits_BTV)


@pytest.fixture(name="compare")
def check_with(monkeypatch: pytest.MonkeyPatch) -> Any:
    def compare(graphs: Graphs, weights: str = "float32", memory: int = 64) -> Any:
        ring = {"name": "blocks.1.ring.memory", "shape": [memory, 8]}
        manifest = {"chunk": CHUNK, "weights": weights, "state": [ring]}
        monkeypatch.setattr(check, "STEPS", 40)
        monkeypatch.setattr(check, "read_manifest", lambda folder: manifest)
        monkeypatch.setattr(check, "open_export", lambda folder: graphs)
        return check_graphs(Path(), tiny("sha_rnn").float(), VOCAB)

    return compare


def test_both_graphs_are_compared_until_memory_is_full_and_beyond(compare: Any) -> None:
    graphs = Graphs()
    found = compare(graphs)
    assert found.largest_difference == 0
    assert found.extra_bits == 0
    chunks, steps = [(2, CHUNK)] * 6, [(2, 1)] * 40
    # 48 positions in chunks, then 40 one by one: the 64th is among them.
    assert graphs.lengths == [*chunks, *steps, (2, CHUNK), (1, CHUNK), (1, 1)]


@pytest.mark.parametrize("call", [0, 5, 6, 45, 46, 47, 48])
def test_a_different_logit_in_any_call_is_refused(call: int, compare: Any) -> None:
    with pytest.raises(UserError, match=r"differ by up to 0\.01"):
        compare(Graphs(-0.01, calls=range(call, call + 1)))


def test_logits_that_are_no_numbers_are_refused(compare: Any) -> None:
    with pytest.raises(UserError, match="differ by up to nan"):
        compare(Graphs(torch.nan, calls=range(2, 3)))


def test_another_text_is_refused(compare: Any) -> None:
    with pytest.raises(UserError, match="a different text"):
        compare(Graphs(50.0, calls=range(9, 12)))


def test_weights_in_8_bits_may_differ_as_long_as_they_cost_little(compare: Any) -> None:
    found = compare(Graphs(0.01, calls=range(60)), "int8")
    assert found.largest_difference == pytest.approx(0.01, rel=1e-3)
    assert 0 < found.extra_bits < 1e-3
    with pytest.raises(UserError, match="bits more; export without --int8"):
        compare(Graphs(5.0, calls=range(60)), "int8")
