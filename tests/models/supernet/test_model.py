"""The super-net: what it mixes, what learns when, what cost does, when it has converged."""

import signal
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.toy import Shelf, budget, callbacks, toy_training

from sparing.models.cost import cost
from sparing.models.stack.config import (
    BoomConfig,
    FeedForwardConfig,
    RelativeAttentionConfig,
    SingleHeadConfig,
    StackConfig,
    WindowedAttentionConfig,
)
from sparing.models.stack.model import Stack
from sparing.models.supernet.config import SearchConfig, SupernetConfig
from sparing.models.supernet.model import Supernet
from sparing.runs.build import build_model
from sparing.runs.recipes import recipe
from sparing.search.cost import as_stack
from sparing.training.capture import load_model_tensors, model_tensors, restore
from sparing.training.journal import TIMINGS, read
from sparing.training.loop import fit
from sparing.training.optim import OptimConfig, build_optimizer
from sparing.training.schedule import ScheduleConfig

SMALL = StackConfig(
    vocab_size=7,
    pattern="xfxf",
    dim=8,
    relative=RelativeAttentionConfig(heads=2, head_dim=4, memory=16),
    windowed=WindowedAttentionConfig(heads=2, head_dim=4),
    single_head=SingleHeadConfig(memory=16),
    feedforward=FeedForwardConfig(dim=16),
    boom=BoomConfig(dim=16),
)
PRICED: dict[str, Any] = {"costs": (3.0, 1.0, 0.0), "fixed_cost": 2.0, "budget": 0.5}
TOKENS = torch.tensor([[0, 1, 2, 3, 4], [5, 6, 2, 2, 1], [4, 4, 1, 0, 0], [1, 2, 1, 2, 1]])


def supernet(stack: StackConfig = SMALL, **search: Any) -> Supernet:
    torch.manual_seed(0)
    return Supernet(SupernetConfig.of(stack, SearchConfig(**search)))


def lively(model: Supernet) -> Supernet:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def prefer(model: Supernet, pattern: str) -> None:
    assert model.logits is not None
    with torch.no_grad():
        model.logits.zero_()
        for slot, letter in enumerate(pattern):
            model.logits[slot, model.search.candidates.index(letter)] = 1.0


def learn(model: Supernet) -> None:
    out = model(TOKENS, model.initial_state(4))
    (model.head.nats(out.hidden_BTD, TOKENS).mean() + out.penalty).backward()


def moved(model: Supernet) -> tuple[bool, bool]:
    """Whether the last backward pass taught the preferences, and the weights."""
    assert model.logits is not None
    weights = [p.grad for name, p in model.named_parameters() if name != "logits"]
    return model.logits.grad is not None, any(gradient is not None for gradient in weights)


def test_in_evaluation_it_is_the_stack_of_its_choices() -> None:
    model = lively(supernet(candidates="xfli")).eval()
    prefer(model, "lfix")
    stack = Stack(replace(SMALL, pattern="lfix")).eval()
    own = model_tensors(model)
    with torch.no_grad():
        for name, tensor in model_tensors(stack).items():
            kind, _, rest = name.partition(".")
            if kind == "blocks":
                slot, _, rest = rest.partition(".")
                name = f"blocks.{slot}.candidates.{'lfix'[int(slot)]}.{rest}"
            tensor.copy_(own[f"stack.{name}"])
    found = model(TOKENS, model.initial_state(4)).hidden_BTD
    torch.testing.assert_close(found, stack(TOKENS, stack.initial_state(4)).hidden_BTD)
    assert model.pattern() == "lfix"
    model.collapse()
    torch.testing.assert_close(model(TOKENS, model.initial_state(4)).hidden_BTD, found)
    assert model.pattern() == "lfix"


def test_evaluation_has_no_noise() -> None:
    model = lively(supernet())
    answers = []
    for step in range(3):
        model.train().before_step(step, 0.1)
        model.eval()
        answers.append(model(TOKENS, model.initial_state(4)).hidden_BTD)
    torch.testing.assert_close(answers[0], answers[1], rtol=0, atol=0)
    torch.testing.assert_close(answers[0], answers[2], rtol=0, atol=0)


def test_a_network_of_identities_adds_nothing() -> None:
    model = lively(supernet(replace(SMALL, embedding_skip=False))).eval()
    prefer(model, "iiii")
    out = model(TOKENS, model.initial_state(4))
    first, _ = model.stack._embed(TOKENS, out.state)
    torch.testing.assert_close(out.hidden_BTD, torch.nn.functional.rms_norm(first, (8,)))


@pytest.mark.parametrize("sampling", ["soft", "straight-through", "single-path"])
def test_every_kind_of_sampling_teaches_the_preferences(sampling: str) -> None:
    model = lively(supernet(sampling=sampling)).train()
    model.before_step(0, 0.0)
    learn(model)
    assert model.logits is not None
    assert model.logits.grad is not None
    assert model.logits.grad.any()


def test_on_a_single_path_an_identity_teaches_its_slot_nothing() -> None:
    model = lively(supernet(sampling="single-path")).train()
    prefer(model, "xifi")
    model.before_step(0, 0.0)
    model.noise.zero_()
    learn(model)
    assert model.logits is not None
    assert model.logits.grad is not None
    assert model.logits.grad.any(dim=-1).tolist() == [True, False, True, False]


def test_a_single_path_is_held_for_a_window_of_steps() -> None:
    model, seen = supernet(sampling="single-path", resample_every=3).train(), []
    for step in range(9):
        model.before_step(step, 0.0)
        seen.append(model.noise.clone())
    assert all(torch.equal(seen[0], noise) for noise in seen[:3])
    assert not torch.equal(seen[2], seen[3])
    assert all(torch.equal(seen[3], noise) for noise in seen[3:6])


def test_taking_turns_each_learns_alone_and_from_its_own_lanes() -> None:
    model = lively(supernet(weights_only=0.5, turn=5, held=0.25)).train()
    expected = {(0, 0.0): (False, True), (4, 0.4): (False, True)}
    expected |= {(step, 0.6): (False, True) for step in (5, 6, 7, 8)}
    expected[9, 0.6] = (True, False)
    for (step, share), wanted in expected.items():
        model.before_step(step, share)
        model.zero_grad()
        learn(model)
        assert moved(model) == wanted, (step, share)
        assert model.head.lanes == ("held" if wanted[0] else "most"), (step, share)


def test_learning_at_once_is_the_default() -> None:
    model = lively(supernet()).train()
    model.before_step(3, 0.0)
    learn(model)
    assert moved(model) == (True, True)
    assert model.head.lanes == "all"


def test_the_temperature_falls_to_its_end() -> None:
    model = supernet(tau_start=2.0, tau_end=0.2)
    found = []
    for share in (0.0, 0.5, 1.0):
        model.before_step(0, share)
        found.append(model.telemetry()["tau"])
    assert found == pytest.approx([2.0, 0.4**0.5, 0.2])


def test_the_price_rises_above_the_budget_and_falls_below_it() -> None:
    model = supernet(**PRICED, price=0.1).train()
    assert model.config.cost_limit == 0.5 * (2 + 8) - 2
    prefer(model, "xxxx")
    model.after_step()
    high = model.telemetry()["price"]
    assert high > 0
    out = model(TOKENS, model.initial_state(4))
    out.penalty.backward()
    assert model.logits is not None
    assert model.logits.grad is not None
    # Less of what is dear: the gradient of attention's preference is the largest.
    assert (model.logits.grad[:, 0] > model.logits.grad[:, 2]).all()
    with torch.no_grad():
        model.logits[:, 2] = 9.0
    model.after_step()
    assert model.telemetry()["price"] < high
    assert model.telemetry()["cost"] == pytest.approx(0.2, abs=0.01)


def test_a_hinge_costs_nothing_within_the_budget() -> None:
    model = supernet(**PRICED, pricing="hinge", price=0.3).train()
    prefer(model, "iiii")
    with torch.no_grad():
        assert model.logits is not None
        model.logits[:, 2] = 9.0
    assert model(TOKENS, model.initial_state(4)).penalty.item() == 0
    prefer(model, "xxxx")
    assert model(TOKENS, model.initial_state(4)).penalty.item() > 0


def test_probabilities_are_reported_by_slot_and_letter() -> None:
    found = lively(supernet()).telemetry()
    for slot in range(4):
        row = [found[f"pi.{slot}.{letter}"] for letter in "xfi"]
        assert sum(row) == pytest.approx(1)
    assert found["entropy"] > 0


def test_it_converges_when_choices_stay_the_same_and_remembers_it() -> None:
    model = supernet(check_every=2, checks_to_stop=2, stable=0.75).train()
    go(model, range(2))
    assert not model.converged
    prefer(model, "ffxx")
    go(model, range(2, 6))
    assert not model.converged
    go(model, range(6, 8))
    assert model.converged
    other = supernet(check_every=2, checks_to_stop=2, stable=0.75)
    load_model_tensors(other, model_tensors(model))
    assert other.train().converged


@pytest.mark.parametrize(("check_every", "checks"), [(1, [9, 19, 29, 39]), (15, [19, 29])])
def test_checks_between_which_no_preference_was_learned_do_not_count(
    check_every: int, checks: list[int]
) -> None:
    model, seen = (
        supernet(check_every=check_every, checks_to_stop=2, turn=10, weights_only=0.01).train(),
        [],
    )
    for step in range(40):
        model.last_choices.fill_(-1)
        go(model, [step])
        if int(model.last_choices[0]) >= 0:
            seen.append(step)
    assert seen == checks
    assert not model.converged


def go(model: Supernet, steps: Iterable[int]) -> None:
    for step in steps:
        model.before_step(step, step / 100)
        model.after_step()


SEARCHES: dict[str, dict[str, Any]] = {
    "at once": {**PRICED, "candidates": "xfi"},
    "in turns": {
        "stack": replace(SMALL, pattern="lflf"),
        "weights_only": 0.2,
        "turn": 3,
        "candidates": "lfi",
    },
    "single path": {"sampling": "single-path", "resample_every": 4, "candidates": "slxgbi"},
}


@pytest.mark.parametrize("name", SEARCHES)
def test_stopped_and_resumed_it_is_bit_equal(name: str, tmp_path: Path) -> None:
    whole, cut = Shelf(), Shelf()
    search(name, tmp_path / "whole.d", whole)
    search(name, tmp_path / "cut.d", cut, stop=11)
    search(name, tmp_path / "cut.d", cut)
    one, other = whole.kept["last"], cut.kept["last"]
    for stem in ("model", "optimizer", "state"):
        assert one.tensors[stem].keys() == other.tensors[stem].keys()
        for key, tensor in one.tensors[stem].items():
            assert torch.equal(tensor, other.tensors[stem][key]), (stem, key)
    assert losses(tmp_path / "whole.d") == losses(tmp_path / "cut.d")


def search(name: str, folder: Path, shelf: Shelf, stop: int | None = None) -> None:
    """Twenty steps, ended by a signal after `stop` of them, or what is left of them."""
    folder.mkdir(exist_ok=True)
    run = toy_training(supernet(**SEARCHES[name]))
    if "last" in shelf.kept:
        restore(run, shelf.kept["last"])
        run.stream.cursor = run.counters.cursor
    plain = run.model.after_step

    def after_step() -> None:
        plain()
        if run.counters.step + 1 == stop:
            signal.raise_signal(signal.SIGINT)

    run.model.after_step = after_step  # type: ignore[method-assign]  # this run's alone
    ended = fit(run, budget(steps=20), ScheduleConfig(shape="constant"), callbacks(folder, shelf))
    assert ended == (signal.SIGINT if stop else 0)


def losses(folder: Path) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in entry.items() if key not in TIMINGS}
        for entry in read(folder / "metrics.jsonl")
        if entry["kind"] == "train"
    ]


def test_it_learns_the_toy_text(tmp_path: Path) -> None:
    run = toy_training(supernet(tau_end=0.3))
    fit(run, budget(steps=150), ScheduleConfig(), callbacks(tmp_path, Shelf()))
    found = [e for e in read(tmp_path / "metrics.jsonl") if e["kind"] == "train"]
    assert found[-1]["nats_per_token"] < 0.9 < 1.5 < found[0]["nats_per_token"]


def test_a_budget_that_binds_is_spent_and_has_a_price(tmp_path: Path) -> None:
    found = {}
    for price in (0.0, 0.02):
        model = supernet(**(PRICED | {"budget": 0.7}), price=price, tau_end=0.3)
        run = toy_training(model)
        optim = OptimConfig(name="adamw", lr=0.01, architecture_lr=0.03)
        run.optimizer = build_optimizer(model, optim)
        folder = tmp_path / str(price)
        folder.mkdir()
        fit(run, budget(steps=150), ScheduleConfig(shape="constant"), callbacks(folder, Shelf()))
        found[price] = model.telemetry()
    # Left alone the search would spend more, so keeping to the budget is the price's doing.
    assert found[0.0]["cost"] > 0.8
    assert found[0.02]["cost"] == pytest.approx(0.7, abs=0.05)
    assert found[0.02]["price"] > 0.02


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("sampling", ["soft", "straight-through", "single-path"])
def test_all_blocks_mix_in_bfloat16_on_a_gpu(sampling: str) -> None:
    windowed = WindowedAttentionConfig(heads=2, head_dim=16, span_limit=64, span_starts=(8, 16))
    relative = RelativeAttentionConfig(heads=2, head_dim=16, memory=16)
    stack = replace(SMALL, dim=64, boom=BoomConfig(dim=64), windowed=windowed, relative=relative)
    search: dict[str, Any] = {"candidates": "lsaxgbfi", "sampling": sampling, "turn": 2}
    model = lively(supernet(stack, **search)).cuda().train()
    state, tokens = model.initial_state(4), TOKENS.cuda()
    for step in range(4):
        model.before_step(step, step / 4)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = model(tokens, state)
            nats = model.head.nats(out.hidden_BTD, tokens).mean()
        (nats + out.penalty).backward()
        state = out.state
        assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
        model.zero_grad()


def test_attention_is_shown_of_the_chosen_blocks() -> None:
    model = lively(supernet(replace(SMALL, pattern="xxx"), candidates="xsa")).eval()
    prefer(model, "xsa")
    found = model.attention_weights(TOKENS, model.initial_state(4, inference=True))
    # Relative attention cannot show its weights.
    assert found.keys() == {1, 2}
    assert model.learned_windows().keys() == {2}
    chosen = zip(model.stack.blocks, "xsa", strict=True)
    stack = Stack(model.stack.config, [slot.candidates[letter] for slot, letter in chosen]).eval()
    stack.load_state_dict(model.stack.state_dict(), strict=False)
    wanted = stack.attention_weights(TOKENS, stack.initial_state(4, inference=True))
    for place, weights_BHTS in found.items():
        torch.testing.assert_close(weights_BHTS, wanted[place])
        assert weights_BHTS.size(1) == (1 if place == 1 else len(model.learned_windows()[2]))


def test_without_weights_the_baseline_is_counted() -> None:
    run = recipe("toy_par_search")
    counted = cost(build_model(run, "meta"))
    assert counted.parameters_deployed == counted.parameters_training
    against = cost(build_model(as_stack(run, run.model.pattern), "meta"))
    assert counted.flops_per_token == against.flops_per_token
