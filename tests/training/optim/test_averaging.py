"""ASGD, NT-ASGD and moving averages (the mean, its start, validation with it), and Lookahead."""

import copy
import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.training.toy import Shelf, budget, callbacks, entries, toy_training
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from sparing.config import from_json, with_settings
from sparing.errors import UserError
from sparing.models.api import LanguageModel
from sparing.training.capture import restore
from sparing.training.loop import fit
from sparing.training.optim import (
    Averaging,
    Lookahead,
    OptimConfig,
    OptimizerSet,
    build_optimizer,
)
from sparing.training.schedule import ScheduleConfig

Make = Callable[[], LanguageModel]
PLAIN = ScheduleConfig(shape="constant")


def started(losses: list[float], patience: int) -> list[bool]:
    """Whether averaging is on after each of the losses."""
    averaging, on = Averaging({"w": nn.Parameter(torch.zeros(1))}, patience), []
    for loss in losses:
        averaging.report_validation(loss)
        on.append(int(averaging.steps) >= 0)
    return on


@pytest.mark.parametrize(
    ("patience", "losses", "first"),
    [
        # With n = 2 the fourth loss is the first that can trigger: three are logged before it, and
        # it is compared with the best of those but the latest two.
        (2, [5.0, 4.0, 3.0, 5.1], 3),
        (2, [5.0, 4.0, 3.0, 4.9, 4.1], 4),
        (2, [5.0, 4.0, 3.0, 3.5, 3.6, 3.7], 5),
        (2, [5.0, 6.0, 7.0, 5.0], None),
        (2, [1.0, 9.0, 9.0], None),
        (2, [1.0, 9.0, 9.0, 9.0], 3),
        (1, [2.0, 3.0, 2.5], 2),
        (5, [9.0, 8.0, 7.0, 6.0, 5.0, 9.5], None),
        (5, [9.0, 8.0, 7.0, 6.0, 5.0, 8.5, 9.1], 6),
        (5, [9.0, 8.0, 7.0, 6.0, 5.0, 8.5, 8.9, 8.1], 7),
        (5, [9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0], None),
        (2, [5.0, 4.0, 3.0, 5.1, 1.0, 0.5], 3),
    ],
)
def test_the_trigger_is_that_of_the_code(
    patience: int, losses: list[float], first: int | None
) -> None:
    expected = [first is not None and index >= first for index in range(len(losses))]
    assert started(losses, patience) == expected


def test_the_trigger_equals_the_rule_written_out() -> None:
    random = torch.Generator().manual_seed(0)
    for patience in (1, 3, 5):
        losses = (3 + torch.randn(14, generator=random)).sort(descending=True).values
        losses = (losses + 0.4 * torch.randn(14, generator=random)).tolist()
        logged: list[float] = []
        on, expected = False, []
        for loss in losses:
            on = on or (len(logged) > patience and loss > min(logged[:-patience]))
            logged.append(loss)
            expected.append(on)
        assert started(losses, patience) == expected


def weights(model: LanguageModel) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def validated(optimizer: OptimizerSet) -> AbstractContextManager[None]:
    """Context in which the model has the only weights that are validated."""
    (only,) = optimizer.candidates()
    return optimizer.averaged(only)


def test_the_mean_is_of_the_weights_after_each_step(tiny: Make, train: Callable[..., None]) -> None:
    model, plain = tiny(), tiny()
    config = OptimConfig(name="asgd", lr=0.5, weight_decay=0.01)
    optimizer = build_optimizer(model, config)
    sgd = build_optimizer(plain, OptimConfig(name="sgd", lr=0.5, weight_decay=0.01))
    visited = []
    for step in range(5):
        train(model, optimizer, range(step, step + 1))
        train(plain, sgd, range(step, step + 1))
        visited.append(weights(model))
    torch.testing.assert_close(weights(model), weights(plain), rtol=0, atol=0)
    with validated(optimizer):
        for name, found in weights(model).items():
            mean = torch.stack([each[name] for each in visited]).mean(0)
            torch.testing.assert_close(found, mean)
    torch.testing.assert_close(weights(model), visited[-1], rtol=0, atol=0)


def test_it_is_torchs_asgd_with_the_first_step_counted(tiny: Make) -> None:
    model, theirs = tiny(), tiny()
    optimizer = build_optimizer(model, OptimConfig(name="asgd", lr=0.5, weight_decay=0.01))
    other = torch.optim.ASGD(theirs.parameters(), lr=0.5, lambd=0.0, t0=0, weight_decay=0.01)
    visited = []
    for step in range(4):
        tokens = torch.randint(0, 11, (2, 8), generator=torch.Generator().manual_seed(step))
        for net, stepped in ((model, optimizer), (theirs, other)):
            stepped.zero_grad()
            net.head.nats(net(tokens[:, :-1], {}).hidden_BTD, tokens[:, 1:]).mean().backward()
            stepped.step()
        visited.append(weights(model))
    torch.testing.assert_close(weights(model), weights(theirs))
    with validated(optimizer):
        ours = weights(model)
    for name, p in theirs.named_parameters():
        if p.requires_grad:
            # Torch sets its mean to the weights in the second step once more.
            counted = (3 * other.state[p]["ax"] + visited[0][name]) / 4
            torch.testing.assert_close(ours[name], counted)


def test_an_exponential_moving_average_starts_as_a_mean(
    tiny: Make, train: Callable[..., None]
) -> None:
    model = tiny()
    optimizer = build_optimizer(model, OptimConfig(name="muon", lr=0.1, ema_decay=(0.75,)))
    expected: dict[str, Tensor] = {}
    for step, weight in enumerate((1, 1 / 2, 1 / 3, 1 / 4, 1 / 4, 1 / 4)):
        train(model, optimizer, range(step, step + 1))
        for name, p in weights(model).items():
            expected[name] = torch.lerp(expected.get(name, p), p, weight)
    with validated(optimizer):
        torch.testing.assert_close(weights(model), expected)


@pytest.mark.parametrize("every", [1, 2])
def test_each_of_several_averages_has_its_own_decay_per_step(
    every: int, tiny: Make, train: Callable[..., None]
) -> None:
    model = tiny()
    decays = (0.5, 0.75)
    config = OptimConfig(name="muon", lr=0.1, ema_decay=decays, ema_update_every=every)
    optimizer, visited = build_optimizer(model, config), []
    assert optimizer.candidates() == (0,)
    for step in range(9):
        train(model, optimizer, range(step, step + 1))
        visited.append(model.mix.weight.detach().clone())
    assert optimizer.candidates() == (0, *decays)
    looked_at = visited[every - 1 :: every]
    for decay in decays:
        mean = looked_at[0]
        for number, weight in enumerate(looked_at, start=1):
            mean = torch.lerp(mean, weight, max(1 / number, 1 - decay**every))
        with optimizer.averaged(decay):
            torch.testing.assert_close(model.mix.weight.detach(), mean)
    with optimizer.averaged(0):
        assert torch.equal(model.mix.weight, visited[-1])
    assert torch.equal(model.mix.weight, visited[-1])


def test_an_average_that_is_off_is_none() -> None:
    assert OptimConfig(ema_decay=(0.0,)) == OptimConfig()


@pytest.mark.parametrize(
    ("text", "decays"),
    [
        ("0.99,0.9975", (0.99, 0.9975)),
        ("[0.99, 0.9975]", (0.99, 0.9975)),
        ("0.999", (0.999,)),
        ("0", ()),
        ("", ()),
        ("()", ()),
    ],
)
def test_decays_are_set_as_a_number_or_a_list(text: str, decays: tuple[float, ...]) -> None:
    assert with_settings(OptimConfig(), [f"ema_decay={text}"]).ema_decay == decays


@pytest.mark.parametrize(("stored", "decays"), [(0.0, ()), (0.9975, (0.9975,))])
def test_the_single_decay_of_an_older_run_is_read(stored: float, decays: tuple[float, ...]) -> None:
    assert from_json(OptimConfig, {"ema_decay": stored}).ema_decay == decays


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "asgd", "ema_decay": (0.9,)}, "averages the weights already"),
        ({"ema_decay": (0.9, 1.0)}, "ema_decay must be at least 0 and below 1"),
        ({"ema_decay": (-0.1,)}, "ema_decay must be at least 0 and below 1"),
        ({"ema_decay": (0.9, 0.9)}, "ema_decay must be different numbers"),
        ({"ema_update_every": 0}, "ema_update_every must be at least 1"),
    ],
)
def test_decays_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        OptimConfig(**settings)


def test_before_the_trigger_the_current_weights_are_validated(
    tiny: Make, train: Callable[..., None]
) -> None:
    model = tiny()
    optimizer = build_optimizer(model, OptimConfig(name="ntasgd", lr=0.5, patience=1))
    train(model, optimizer, range(3))
    before = weights(model)
    with validated(optimizer):
        torch.testing.assert_close(weights(model), before, rtol=0, atol=0)
    for loss in (1.0, 2.0, 3.0):
        optimizer.report_validation(loss)
    with validated(optimizer):
        torch.testing.assert_close(weights(model), before, rtol=0, atol=0)
    train(model, optimizer, range(3, 4))
    after = weights(model)
    train(model, optimizer, range(4, 5))
    middle = (after["mix.weight"] + weights(model)["mix.weight"]) / 2
    with validated(optimizer):
        torch.testing.assert_close(weights(model)["mix.weight"], middle)


def test_resumed_around_its_trigger_it_is_bit_equal(
    tiny: Make, train: Callable[..., None], tmp_path: Path
) -> None:
    config = OptimConfig(name="ntasgd", lr=0.5, patience=2)
    losses = [5.0, 4.0, 3.0, 3.1, 6.0, 2.0]

    def train_and_report(model: LanguageModel, optimizer: Any, steps: range) -> None:
        for step in steps:
            train(model, optimizer, range(step, step + 1))
            optimizer.report_validation(losses[step])

    whole, first, second = (tiny() for _ in range(3))
    straight = build_optimizer(whole, config)
    train_and_report(whole, straight, range(6))
    for stop in (2, 4, 5):
        stopped, resumed = build_optimizer(first, config), build_optimizer(second, config)
        first.load_state_dict(tiny().state_dict())
        train_and_report(first, stopped, range(stop))
        save_file(stopped.tensors(), tmp_path / "optimizer.safetensors")
        second.load_state_dict(first.state_dict())
        resumed.load_tensors(load_file(tmp_path / "optimizer.safetensors"))
        train_and_report(second, resumed, range(stop, 6))
        with validated(straight), validated(resumed):
            torch.testing.assert_close(weights(second), weights(whole), rtol=0, atol=0)
        assert int(resumed.averaging.steps) == 1


def test_the_loop_validates_and_saves_the_mean_and_trains_the_current_weights(
    tmp_path: Path,
) -> None:
    seen: list[Tensor] = []

    def validate(model: LanguageModel) -> dict[str, Any]:
        seen.append(model.head.weight.detach().clone())
        loss = 3.0 - len(seen)
        return {"nats_per_token": loss, "bits_per_byte": loss, "tokens": 1, "elapsed_s": 0.0}

    training, shelf = toy_training(), Shelf()
    training.optimizer = build_optimizer(training.model, OptimConfig(name="asgd", lr=0.5))
    fit(training, budget(steps=6, evaluate_every=3), PLAIN, callbacks(tmp_path, shelf, validate))
    mean = training.optimizer.averaging.means[1.0]["embedding.weight"]
    torch.testing.assert_close(seen[-1], mean, rtol=0, atol=0)
    best, last = shelf.kept["best"].tensors["model"], shelf.kept["last"].tensors["model"]
    torch.testing.assert_close(best["embedding.weight"], mean, rtol=0, atol=0)
    torch.testing.assert_close(last["embedding.weight"], training.model.head.weight, rtol=0, atol=0)
    assert not torch.equal(best["embedding.weight"], last["embedding.weight"])


@pytest.mark.parametrize("chosen", [0, 1, 2])
def test_the_best_of_several_averages_and_the_weights_is_saved(chosen: int, tmp_path: Path) -> None:
    seen: list[Tensor] = []

    def validate(model: LanguageModel) -> dict[str, Any]:
        loss = None if len(seen) == (chosen + 1) % 3 else 2.0 - (len(seen) == chosen)
        seen.append(model.head.weight.detach().clone())
        return {"nats_per_token": loss, "bits_per_byte": loss, "tokens": 1, "elapsed_s": 0.5}

    training, shelf = toy_training(), Shelf()
    config = OptimConfig(lr=1e-2, ema_decay=(0.5, 0.75))
    training.optimizer = build_optimizer(training.model, config)
    fit(training, budget(steps=6), PLAIN, callbacks(tmp_path, shelf, validate))
    means = training.optimizer.averaging.means
    present = training.model.head.weight.detach()
    expected = [present, *(means[decay]["embedding.weight"] for decay in (0.5, 0.75))]
    torch.testing.assert_close(seen, expected, rtol=0, atol=0)
    saved = shelf.kept["best"].tensors["model"]["embedding.weight"]
    torch.testing.assert_close(saved, expected[chosen], rtol=0, atol=0)
    last = shelf.kept["last"].tensors["model"]["embedding.weight"]
    torch.testing.assert_close(last, present, rtol=0, atol=0)
    assert not any(torch.equal(*pair) for pair in itertools.combinations(expected, 2))
    (entry,) = entries(tmp_path, "valid")
    bits = [None if at == (chosen + 1) % 3 else 2.0 - (at == chosen) for at in range(3)]
    assert entry["bits_per_byte_by_ema_decay"] == dict(zip(("0", "0.5", "0.75"), bits, strict=True))
    assert (entry["ema_decay"], entry["bits_per_byte"]) == ((0, 0.5, 0.75)[chosen], 1.0)
    assert '"evaluate_s": 1.5' in (tmp_path / "metrics.jsonl").read_text()


def test_averages_change_no_step(tmp_path: Path) -> None:
    trained = []
    for decays in ((), (0.5,), (0.5, 0.75)):
        training = toy_training()
        config = OptimConfig(lr=1e-2, ema_decay=decays)
        training.optimizer = build_optimizer(training.model, config)
        fit(training, budget(steps=6, evaluate_every=2), PLAIN, callbacks(tmp_path, Shelf()))
        trained.append(weights(training.model))
    torch.testing.assert_close(trained, [trained[0]] * 3, rtol=0, atol=0)


AVERAGED = {
    "ntasgd": OptimConfig(name="ntasgd", lr=0.5, patience=1),
    "one average": OptimConfig(lr=1e-2, ema_decay=(0.9,), ema_update_every=5),
    "several averages": OptimConfig(lr=1e-2, ema_decay=(0.5, 0.9), ema_update_every=5),
}


@pytest.mark.parametrize("config", AVERAGED.values(), ids=AVERAGED.keys())
def test_a_run_resumed_after_averaging_began_is_bit_equal(
    config: OptimConfig, tmp_path: Path
) -> None:
    def validate(model: LanguageModel) -> dict[str, Any]:
        loss = model.head.weight.detach().double().sum().item()
        return {"nats_per_token": loss, "bits_per_byte": loss, "tokens": 1, "elapsed_s": 0.0}

    def made() -> Any:
        training = toy_training()
        training.optimizer = build_optimizer(training.model, config)
        return training

    whole, first, second, shelf = made(), made(), made(), Shelf()
    fit(whole, budget(steps=20, evaluate_every=2), PLAIN, callbacks(tmp_path, Shelf(), validate))
    fit(first, budget(steps=12, evaluate_every=2), PLAIN, callbacks(tmp_path, shelf, validate))
    restore(second, shelf.kept["last"])
    second.stream.cursor = second.counters.cursor
    fit(second, budget(steps=20, evaluate_every=2), PLAIN, callbacks(tmp_path, shelf, validate))
    assert int(whole.optimizer.averaging.steps) > 0
    torch.testing.assert_close(
        second.optimizer.tensors(), whole.optimizer.tensors(), rtol=0, atol=0
    )
    torch.testing.assert_close(weights(second.model), weights(whole.model), rtol=0, atol=0)


def step(optimizer: Lookahead, p: Tensor, gradient: float) -> None:
    p.grad = torch.full_like(p, gradient)
    optimizer.step()


def test_lookahead_goes_back_a_fifth_of_the_way_every_fifth_step() -> None:
    p = torch.zeros(2, requires_grad=True)
    optimizer = Lookahead(SGD([p], lr=1.0))
    seen = []
    for _ in range(10):
        step(optimizer, p, -1.0)
        seen.append(float(p.detach()[0]))
    assert seen == pytest.approx([1, 2, 3, 4, 4, 5, 6, 7, 8, 8])


def test_lookahead_starts_from_weights_loaded_after_construction() -> None:
    p = torch.zeros(2, requires_grad=True)
    optimizer = Lookahead(SGD([p], lr=1.0))
    with torch.no_grad():
        p.fill_(100.0)
    for _ in range(5):
        step(optimizer, p, -1.0)
    assert float(p.detach()[0]) == pytest.approx(104.0)


def test_a_new_learning_rate_reaches_lookaheads_inner_optimizer() -> None:
    p = torch.zeros(2, requires_grad=True)
    optimizer = Lookahead(SGD([p], lr=1.0))
    optimizer.param_groups[0]["lr"] = 0.5
    step(optimizer, p, -1.0)
    assert float(p.detach()[0]) == 0.5


def test_lookahead_resumes_from_its_state_dict() -> None:
    def fresh() -> tuple[Tensor, Lookahead]:
        p = torch.ones(3, requires_grad=True)
        return p, Lookahead(AdamW([p], lr=0.1))

    (p, whole), (q, first), (r, second) = fresh(), fresh(), fresh()
    for number in range(7):
        step(whole, p, 1.0 + number)
    for number in range(4):
        step(first, q, 1.0 + number)
    with torch.no_grad():
        r.copy_(q)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for number in range(4, 7):
        step(second, r, 1.0 + number)
    assert torch.equal(r, p)
    assert not torch.equal(q, p)
