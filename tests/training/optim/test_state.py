"""A set of optimizers: rates, and a state that goes through a file bit by bit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from safetensors.torch import load_file, save_file

from sparing.errors import UserError
from sparing.models.api import LanguageModel
from sparing.training.optim import OptimConfig, build_optimizer
from sparing.training.optim.build import OptimizerName

NAMES = get_args(OptimizerName)
Make = Callable[[], LanguageModel]
CUDA = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    ],
)


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("lookahead", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_stopping_and_going_on_changes_no_bit(
    tiny: Make,
    train: Callable[..., None],
    tmp_path: Path,
    name: OptimizerName,
    lookahead: bool,
    device: str,
) -> None:
    config = OptimConfig(name=name, lr=0.05, momentum=0.9, weight_decay=0.1, lookahead=lookahead)
    whole, first, second = (tiny().to(device) for _ in range(3))
    train(whole, build_optimizer(whole, config), range(10))
    stopped = build_optimizer(first, config)
    train(first, stopped, range(4))
    save_file(stopped.tensors(), tmp_path / "optimizer.safetensors")
    second.load_state_dict(first.state_dict())
    resumed = build_optimizer(second, config)
    resumed.load_tensors(load_file(tmp_path / "optimizer.safetensors"))
    train(second, resumed, range(4, 10))
    torch.testing.assert_close(second.state_dict(), whole.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_going_on_without_the_state_ends_elsewhere(
    tiny: Make, train: Callable[..., None], name: OptimizerName
) -> None:
    config = OptimConfig(name=name, lr=0.05, momentum=0.9)
    whole, broken = tiny(), tiny()
    train(whole, build_optimizer(whole, config), range(6))
    train(broken, build_optimizer(broken, config), range(4))
    train(broken, build_optimizer(broken, config), range(4, 6))
    assert not torch.equal(broken.head.weight, whole.head.weight)


def test_the_state_is_named_after_parameters(tiny: Make) -> None:
    model = tiny()
    names = build_optimizer(model, OptimConfig(name="muon", lookahead=True)).tensors().keys()
    keys = {name.partition("/")[2] for name in names if name.startswith("mix.weight/")}
    assert keys == {"momentum_buffer", "slow", "taken"}
    keys = {name.partition("/")[2] for name in names if name.startswith("mix.bias/")}
    assert keys == {"step", "exp_avg", "exp_avg_sq", "slow", "taken"}
    assert not any(name.startswith("frozen") for name in names)


def test_a_state_that_does_not_fit_is_refused_by_name_and_changes_nothing(
    tiny: Make, train: Callable[..., None]
) -> None:
    model = tiny()
    source = build_optimizer(model, OptimConfig(name="lamb"))
    train(model, source, range(2))
    good, name = source.tensors(), "mix.weight/exp_avg"
    bad = {
        "missing": {key: value for key, value in good.items() if key != name},
        "int64": {**good, name: good[name].long()},
        r"\(3,\)": {**good, name: torch.zeros(3)},
    }
    target = build_optimizer(tiny(), OptimConfig(name="lamb"))
    for reason, tensors in bad.items():
        with pytest.raises(UserError, match=rf"{name}.*{reason}"):
            target.load_tensors(tensors)
    with pytest.raises(UserError, match=r"mix\.weight/step"):
        target.load_tensors({**good, "mix.weight/step": torch.zeros(())})
    assert not any(tensor.any() for tensor in target.tensors().values())


def test_rates_are_scaled_from_their_base(tiny: Make) -> None:
    optimizer = build_optimizer(tiny(), OptimConfig(name="muon", lr=0.2, table_lr=0.4))
    for factor in (0.5, 0.0, 1.0, 0.25):
        optimizer.scale_lr(factor)
        rates = {group["role"]: group["lr"] for group in optimizer.param_groups}
        assert rates == pytest.approx(
            {"matrix": 0.2 * factor, "table": 0.4 * factor, "vector": 0.03 * factor}
        )
        assert optimizer.lr == optimizer.param_groups[0]["lr"]


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_a_constant_decay_shrinks_the_weights_whatever_the_rate(name: str, tiny: Make) -> None:
    settings: dict[str, Any] = {"name": name, "lr": 0.2, "table_lr": 0.4, "vector_lr": 0.2}
    shrunk = {}
    for schedule in ("lr", "constant"):
        model = tiny()
        config = OptimConfig(**settings, weight_decay=0.1, decay_schedule=schedule)
        optimizer = build_optimizer(model, config)
        for factor in (1.0, 0.01, 0.5, 0.0):
            before = {key: p.detach().clone() for key, p in model.named_parameters()}
            for p in model.parameters():
                # Without a gradient the decay is all of the step.
                p.grad = torch.zeros_like(p)
            optimizer.scale_lr(factor)
            optimizer.step()
            for key, p in model.named_parameters():
                rate = 0.4 if key == "embedding.weight" else 0.2
                course = factor if schedule == "lr" else float(factor > 0)
                kept = 1 - rate * 0.1 * course if p.requires_grad else 1.0
                torch.testing.assert_close(p.detach(), before[key] * kept, rtol=1e-6, atol=0)
        shrunk[schedule] = model.mix.weight.norm().item()
    assert shrunk["constant"] < 0.99 * shrunk["lr"]


@pytest.mark.parametrize("name", ["lamb", "adam", "sgd", "asgd", "ntasgd", "adagrad"])
def test_only_decoupled_decay_can_be_constant(name: Any) -> None:
    with pytest.raises(UserError, match=f"constant is for adamw and muon, not {name}"):
        OptimConfig(name=name, decay_schedule="constant")


def test_gradients_are_dropped(tiny: Make) -> None:
    model = tiny()
    optimizer = build_optimizer(model, OptimConfig(name="muon"))
    model.head.weight.sum().backward()
    optimizer.zero_grad()
    assert all(p.grad is None for p in model.parameters())
