"""Recorded attention: distances, buckets, and a tiny SHA-RNN token by token."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sparing.data.vocab import ByteVocab
from sparing.device import Hardware
from sparing.errors import UserError
from sparing.models.api import LanguageModel, State
from sparing.models.sha_rnn.config import SHARNNConfig
from sparing.models.sha_rnn.model import SHARNN
from sparing.models.stack.config import SingleHeadConfig, StackConfig, WindowedAttentionConfig
from sparing.models.stack.model import Stack
from sparing.plot import focus as module
from sparing.plot.figure import save_figure
from sparing.plot.focus import (
    Focus,
    distance_buckets,
    draw_focus,
    draw_memory_use,
    max_weights,
    memory_use,
    printable,
    record_attention,
    uniform_weights,
    weights_by_distance,
)

CPU = Hardware(torch.device("cpu"), "float32")
NAN = np.nan


def tiny(**settings: Any) -> SHARNN:
    torch.manual_seed(1)
    base = {"vocab_size": 256, "dim": 8, "depth": 2, "boom_dim": 8, "memory": 40}
    model = SHARNN(SHARNNConfig(**(base | {"attention_at": (0, 1)} | settings))).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=1.0)
    return model


def text(size: int) -> np.ndarray:
    return np.random.default_rng(0).integers(97, 120, size).astype(np.uint8)


def test_weights_are_rearranged_from_keys_to_distances() -> None:
    weights_TS = np.array([[0.1, 0.9, 0.0], [0.2, 0.3, 0.5]])
    np.testing.assert_equal(weights_by_distance(weights_TS), [[0.9, 0.1, NAN], [0.5, 0.3, 0.2]])


def test_buckets_cover_every_distance_once() -> None:
    assert distance_buckets(1) == [(0, 0)]
    assert distance_buckets(9) == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (5, 6), (7, 8)]


def test_the_strongest_weight_and_the_sum_of_each_bucket() -> None:
    weights_TN = np.array(
        [[0.0, 0.1, 0.1, 0.1, 0.1, 0.2, 0.4], [0.5, 0.1, 0.1, 0.1, 0.1, 0.1, NAN]]
    )
    expected = [[0.0, 0.1, 0.1, 0.1, 0.1, 0.4], [0.5, 0.1, 0.1, 0.1, 0.1, 0.1]]
    np.testing.assert_equal(max_weights(weights_TN), expected)
    np.testing.assert_allclose(memory_use(weights_TN), [0.25, 0.1, 0.1, 0.1, 0.1, 0.35])
    np.testing.assert_equal(max_weights(np.array([[1.0, NAN]])), [[1.0, NAN]])


def test_uniform_attention_gives_every_key_the_same_weight() -> None:
    weights_TN = np.array([[0.9, 0.1, NAN], [0.5, 0.3, 0.2]])
    np.testing.assert_allclose(
        uniform_weights(weights_TN), [[1 / 2, 1 / 2, NAN], [1 / 3, 1 / 3, 1 / 3]]
    )


def test_recorded_attention_is_what_the_model_computes() -> None:
    model, ids = tiny(memory=500), text(40)
    assert module.QUERIES < 22
    focus = record_attention(model, ByteVocab(), ids, CPU, 22)
    assert focus.context == 18
    assert focus.tokens == [chr(id) for id in ids[18:]]
    tokens_BT = torch.from_numpy(ids).long()[None]
    whole = model.eval().attention_weights(tokens_BT, model.initial_state(1))
    assert focus.weights.keys() == whole.keys() == {0, 1}
    for layer, weights_BHTS in whole.items():
        (weights_TN,) = focus.weights[layer]
        for query in range(22):
            seen = weights_BHTS[0, 0, 18 + query, : 19 + query].flip(0).numpy()
            np.testing.assert_allclose(weights_TN[query, : len(seen)], seen, rtol=1e-9)
            assert np.isnan(weights_TN[query, len(seen) :]).all()


def test_every_head_of_a_stack_is_recorded_once_its_memory_is_full(
    monkeypatch: pytest.MonkeyPatch, words: Callable[[Any], str]
) -> None:
    monkeypatch.setattr(module, "READ", 100)
    block = WindowedAttentionConfig(heads=2, head_dim=4, span_limit=64, span_starts=(4.0, 40.0))
    config = StackConfig(vocab_size=256, pattern="fafsl", dim=8, windowed=block)
    torch.manual_seed(1)
    model = Stack(replace(config, single_head=SingleHeadConfig(memory=40))).double()
    for parameter in model.blocks.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.5)
    focus = record_attention(model, ByteVocab(), text(900), CPU, 20)
    # As long as the window of 256 says, in segments of 100; its size is the same from the start.
    assert focus.context == 300
    assert {place: len(heads) for place, heads in focus.weights.items()} == {1: 2, 3: 1}
    for weights_HTN in focus.weights.values():
        np.testing.assert_allclose(np.nansum(weights_HTN, axis=2), 1)
    near, far = focus.weights[1]
    assert not np.nan_to_num(near)[:, 37:].any()
    assert np.nan_to_num(far)[:, 37:].any()
    shown = words(draw_focus(focus, "run", "origin"))
    assert all(name in shown for name in ("block 1, head 0", "block 1, head 1", "block 3"))
    *heads, _ = draw_memory_use(focus, "run", "origin").axes[0].lines
    assert len(heads) == 3
    assert heads[0].get_color() == heads[1].get_color() != heads[2].get_color()


def test_reading_stops_once_the_memory_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READ", 16)
    focus = record_attention(tiny(), ByteVocab(), text(400), CPU, 20)
    assert focus.context == 48
    (weights_TN,) = focus.weights[1]
    assert weights_TN.shape == (20, 40)
    assert np.isfinite(weights_TN).sum(axis=1).min() >= 40 - module.QUERIES + 1
    np.testing.assert_allclose(np.nansum(weights_TN, axis=1), 1)
    assert memory_use(weights_TN).sum() == pytest.approx(1)


def test_dropout_is_off_and_the_mode_put_back() -> None:
    model, ids = tiny(dropout_hidden=0.5).train(), text(30)
    first, second = (record_attention(model, ByteVocab(), ids, CPU, 5).weights[1] for _ in range(2))
    np.testing.assert_equal(first, second)
    assert model.training


def test_both_pictures_show_every_layer(
    tmp_path: Path, words: Callable[[Any], str], colours: Callable[[Path], int]
) -> None:
    focus = record_attention(
        tiny(), ByteVocab(), np.frombuffer(b"a $b$\n\tc \xff", np.uint8), CPU, 50
    )
    for name, draw in (("trial", draw_focus), ("memory", draw_memory_use)):
        figure = draw(focus, "my_$run", "runs/my_run · commit abc")
        shown = words(figure)
        for word in ("block 0", "block 1", "distance back", "commit abc", r"my_\$run"):
            assert word in shown
        (path,) = save_figure(figure, tmp_path / f"{name}.png")
        assert colours(path) > 5


def test_the_heat_map_and_the_lines_hold_the_numbers() -> None:
    weights_TN = np.array([[0.75, 0.25, NAN], [0.5, 0.25, 0.25]])
    focus = Focus(["x", "y"], 0, {3: weights_TN[None]})
    trial = draw_focus(focus, "run", "origin").axes[0].collections[0].get_array()
    np.testing.assert_allclose(trial.filled(NAN), [[75, 50], [25, 25], [NAN, 25]])
    layer, alike = draw_memory_use(focus, "run", "origin").axes[0].lines
    np.testing.assert_allclose(layer.get_ydata(), [62.5, 25, 12.5])
    np.testing.assert_allclose(alike.get_ydata(), [100 * 5 / 12, 100 * 5 / 12, 100 / 6])


@pytest.mark.parametrize("tokens", [1, 200])
def test_a_single_token_and_more_than_fit_under_the_axis_are_drawn(
    tokens: int, tmp_path: Path
) -> None:
    focus = record_attention(tiny(), ByteVocab(), text(tokens), CPU, 200)
    assert len(focus.tokens) == tokens
    save_figure(draw_focus(focus, "run", "origin"), tmp_path / "a.png")
    save_figure(draw_memory_use(focus, "run", "origin"), tmp_path / "b.png")


def test_long_tokens_are_written_upright_and_cut(tmp_path: Path) -> None:
    focus = Focus(["an", "extraordinarily"], 0, {0: np.array([[[1.0, NAN], [0.5, 0.5]]])})
    figure = draw_focus(focus, "run", "origin")
    labels = figure.axes[0].get_xticklabels()
    assert [label.get_text() for label in labels] == ["an", "extraordinar"]
    assert {label.get_rotation() for label in labels} == {90}
    save_figure(figure, tmp_path / "a.png")


def test_white_space_and_invalid_bytes_are_made_visible() -> None:
    assert printable(b"a b\n\t\r") == "a␣b↵→␍"
    assert printable(b"\xff") == "\N{REPLACEMENT CHARACTER}"
    assert printable(b"\x00\x1b") == "□□"


class Blind(LanguageModel):
    """A family without attention to show."""

    device = torch.device("cpu")

    def initial_state(self, batch: int, *, inference: bool = False) -> State:
        return {}

    def forward(self, tokens_BT: Tensor, state: State) -> Any:
        raise AssertionError("not needed")


def test_models_without_attention_are_refused_in_one_line() -> None:
    for blind in (Blind(), tiny(attention_at=()), tiny(memory=0)):
        with pytest.raises(UserError, match="no layer of this model can show where it attends"):
            record_attention(blind, ByteVocab(), text(5), CPU, 5)


def test_an_empty_text_is_refused() -> None:
    with pytest.raises(UserError, match="at least one token"):
        record_attention(tiny(), ByteVocab(), text(5), CPU, 0)
    with pytest.raises(UserError, match="at least one token"):
        record_attention(tiny(), ByteVocab(), text(0), CPU, 5)
