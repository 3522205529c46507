"""Dynamic evaluation: its update by hand, its gain on a shifted text, and that it is undone."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.models.tiny import CONFIGS, tiny
from torch import Tensor, nn

from sparing.data.tokens import Split
from sparing.device import Hardware
from sparing.errors import UserError
from sparing.evaluation.dynamic import (
    DynamicConfig,
    _gradient_rms,
    evaluate_dynamic,
    start_adaptation,
)
from sparing.evaluation.loss import evaluate_streams
from sparing.models.api import LanguageModel
from sparing.models.transformer_xl.config import TransformerXLConfig
from sparing.models.transformer_xl.model import TransformerXL

CPU = Hardware(torch.device("cpu"), "float32")
SGD = DynamicConfig(rule="sgd", lr=0.1, decay=0.01, segment=5)
RMS = DynamicConfig(rule="rms", lr=0.003, decay=0.01, eps=0.02, segment=5, statistics=8, lanes=4)


def repeating(pattern: list[int], tokens: int = 300) -> Split:
    ids = np.resize(np.array(pattern, np.uint8), tokens)
    return Split(ids, tokens, tokens // 5, 0)


TRAIN, SHIFTED = repeating([0, 1, 2, 3, 4, 5, 6]), repeating([6, 2, 4, 0, 5, 1, 3])


@pytest.fixture(scope="module")
def trained() -> LanguageModel:
    """A model trained to predict the first pattern."""
    torch.manual_seed(0)
    config = TransformerXLConfig(
        vocab_size=7, dim=16, depth=1, heads=2, head_dim=8, ff_dim=32, memory=8, dropout=0.1
    )
    model = TransformerXL(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    text = torch.from_numpy(np.array(TRAIN.ids, np.int64))[None]
    state = model.initial_state(1)
    for begin in range(0, 280, 4):
        out = model(text[:, begin : begin + 4], state)
        state = out.state
        model.head.nats(out.hidden_BTD, text[:, begin + 1 : begin + 5]).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("config", [SGD, RMS], ids=["sgd", "rms"])
def test_dynamic_evaluation_adapts_to_a_shifted_text(
    trained: LanguageModel, config: DynamicConfig
) -> None:
    static = evaluate_streams(trained, SHIFTED, CPU, batch=1, segment=5)
    moved = evaluate_dynamic(trained, SHIFTED, CPU, config, train=TRAIN)
    assert static.nats_per_token > 2
    assert moved.nats_per_token < 0.7 * static.nats_per_token
    assert (moved.tokens, moved.size_bytes) == (static.tokens, static.size_bytes)
    assert config.rule in moved.how


@pytest.mark.parametrize("config", [SGD, RMS], ids=["sgd", "rms"])
def test_the_model_is_restored_exactly(trained: LanguageModel, config: DynamicConfig) -> None:
    trained.train()
    before, static = weights(trained), evaluate_streams(trained, SHIFTED, CPU, batch=2, segment=7)
    evaluate_dynamic(trained, SHIFTED, CPU, config, train=TRAIN)
    assert trained.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(trained).items())
    assert all(parameter.grad is None for parameter in trained.parameters())
    assert evaluate_streams(trained, SHIFTED, CPU, batch=2, segment=7).loss_nats == static.loss_nats


@pytest.mark.parametrize("rule", ["sgd", "rms"])
def test_a_learning_rate_of_zero_gives_the_static_loss(trained: LanguageModel, rule: str) -> None:
    still = DynamicConfig(rule=rule, lr=0.0, segment=5, statistics=2, lanes=3)  # type: ignore[arg-type]
    static = evaluate_streams(trained, SHIFTED, CPU, batch=1, segment=5)
    found = evaluate_dynamic(trained, SHIFTED, CPU, still, train=TRAIN)
    assert found.loss_nats == pytest.approx(static.loss_nats, rel=1e-5)


def test_a_segment_is_scored_before_it_is_learned(trained: LanguageModel) -> None:
    first = replace(SGD, segment=300)
    static = evaluate_streams(trained, SHIFTED, CPU, batch=1, segment=300)
    found = evaluate_dynamic(trained, SHIFTED, CPU, replace(first, lr=5.0))
    assert found.loss_nats == pytest.approx(static.loss_nats, rel=1e-5)


def test_full_decay_keeps_only_the_last_update(trained: LanguageModel) -> None:
    held = evaluate_dynamic(trained, SHIFTED, CPU, replace(SGD, decay=1.0))
    free = evaluate_dynamic(trained, SHIFTED, CPU, replace(SGD, decay=0.0))
    static = evaluate_streams(trained, SHIFTED, CPU, batch=1, segment=5)
    assert free.loss_nats < 0.8 * held.loss_nats
    assert held.loss_nats < static.loss_nats


def test_one_step_of_each_rule_by_hand() -> None:
    weight, gradient = nn.Parameter(torch.tensor([1.0, 2.0])), torch.tensor([0.5, -1.0])
    plain = start_adaptation([weight], None, DynamicConfig(rule="sgd", lr=0.1, decay=0.2))
    plain.step_([gradient])
    torch.testing.assert_close(weight.data, torch.tensor([0.95, 2.1]))
    plain.step_([torch.zeros(2)])
    torch.testing.assert_close(weight.data, torch.tensor([0.96, 2.08]))
    plain.undo_()
    torch.testing.assert_close(weight.data, torch.tensor([1.0, 2.0]), rtol=0, atol=0)
    # rms 1 and 3, so the pulls are decay x 1/2 and decay x 3/2; gradients over rms + eps.
    config = DynamicConfig(rule="rms", lr=0.1, decay=0.2, eps=1.0)
    scaled = start_adaptation([weight], [torch.tensor([1.0, 3.0])], config)
    scaled.step_([gradient])
    torch.testing.assert_close(weight.data, torch.tensor([1 - 0.025, 2 + 0.025]))
    scaled.step_([torch.zeros(2)])
    expected = torch.tensor([1 - 0.025 * (1 - 0.1), 2 + 0.025 * (1 - 0.3)])
    torch.testing.assert_close(weight.data, expected)
    strong = start_adaptation([weight], [torch.tensor([0.0, 1e6])], replace(config, decay=0.9))
    assert strong.pulls is not None
    assert strong.pulls[0].tolist() == [0.0, 1.0]


def test_the_root_mean_square_is_that_of_the_segments_gradients(trained: LanguageModel) -> None:
    trained.eval()
    config = replace(RMS, segment=6, statistics=2, lanes=2)
    found = _gradient_rms(trained, TRAIN, CPU, config)
    ids = torch.from_numpy(np.array(TRAIN.ids, np.int64)).view(2, 150)
    fed = torch.cat([torch.tensor([[0], [int(TRAIN.ids[149])]]), ids[:, :-1]], dim=1)
    state, squares = trained.initial_state(2), [torch.zeros_like(p) for p in trained.parameters()]
    for begin in (0, 6):
        out = trained(fed[:, begin : begin + 6], state)
        state = out.state
        loss = trained.head.nats(out.hidden_BTD, ids[:, begin : begin + 6]).mean()
        gradients = torch.autograd.grad(loss, list(trained.parameters()))
        squares = [s + g**2 / 2 for s, g in zip(squares, gradients, strict=True)]
    for one, other in zip(found, squares, strict=True):
        torch.testing.assert_close(one, other.sqrt(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", CONFIGS)
def test_dynamic_evaluation_works_for_every_family(name: str) -> None:
    model, text = tiny(name).float(), repeating([3, 3, 7], 40)
    before, static = weights(model), evaluate_streams(model, text, CPU, batch=1, segment=5)
    for config in (replace(SGD, lr=0.05), replace(RMS, lr=0.002, statistics=2)):
        moved = evaluate_dynamic(model, text, CPU, config, train=text)
        assert moved.loss_nats < static.loss_nats
        assert moved.tokens == 40
    assert all(torch.equal(tensor, before[key]) for key, tensor in weights(model).items())


@pytest.mark.parametrize("name", ["sha_rnn", "sha_rnn gru", "awd_lstm"])
def test_only_recurrent_modules_are_in_training_mode(name: str) -> None:
    model, text = tiny(name).float(), repeating([3, 3, 7], 40)
    modes: dict[str, set[bool]] = {}

    def note(module: nn.Module, _: object) -> None:
        modes.setdefault(type(module).__name__, set()).add(module.training)

    handles = [module.register_forward_pre_hook(note) for module in model.modules()]
    moved = evaluate_dynamic(model, text, CPU, SGD).loss_nats
    recurrent = {"LSTM": {True}} if name != "sha_rnn gru" else {"GRU": {True}}
    assert modes == {kind: {False} for kind in modes} | recurrent
    assert not any(module.training for module in model.modules())
    for handle in handles:
        handle.remove()
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            module.register_forward_pre_hook(lambda module, _: module.eval() and None)
    assert evaluate_dynamic(model, text, CPU, SGD).loss_nats == moved


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["sha_rnn", "sha_rnn gru", "awd_lstm"])
def test_cudnn_computes_gradients_of_recurrent_layers(name: str) -> None:
    model, text = tiny(name).float(), repeating([3, 3, 7], 40)
    expected = evaluate_dynamic(model, text, CPU, SGD).loss_nats
    found = evaluate_dynamic(
        model.cuda(), text, Hardware(torch.device("cuda"), "float32"), SGD
    ).loss_nats
    assert found == pytest.approx(expected, rel=1e-3)


def test_gradients_stored_in_the_model_are_not_changed(trained: LanguageModel) -> None:
    parameter = next(trained.parameters())
    parameter.grad = torch.full_like(parameter, 3.0)
    evaluate_dynamic(trained, SHIFTED, CPU, SGD)
    assert (parameter.grad == 3).all()
    parameter.grad = None


def test_weights_are_restored_after_a_failure(trained: LanguageModel) -> None:
    before = weights(trained)
    with pytest.raises(UserError, match=r"at a learning rate of .*; lower it"):
        evaluate_dynamic(trained, SHIFTED, CPU, replace(SGD, lr=1e30))
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(trained).items())
    assert math.isfinite(evaluate_streams(trained, SHIFTED, CPU).loss_nats)


def test_bad_settings_and_missing_text_are_refused(trained: LanguageModel) -> None:
    with pytest.raises(UserError, match="training text"):
        evaluate_dynamic(trained, SHIFTED, CPU, RMS)
    with pytest.raises(UserError, match="empty"):
        evaluate_dynamic(trained, repeating([0], 0), CPU, SGD)
    for bad in ({"lr": -1.0}, {"decay": 1.5}, {"eps": 0.0}, {"segment": 0}, {"lanes": 0}):
        with pytest.raises(UserError, match="dynamic evaluation needs"):
            DynamicConfig(**bad)
