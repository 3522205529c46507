"""From settings to optimizers: who moves what, and how fast."""

from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from torch.optim import SGD, Adam, AdamW

from sparing.config import from_json, to_json, with_settings
from sparing.errors import UserError
from sparing.models.api import LanguageModel
from sparing.models.stack.config import FeedForwardConfig, RelativeAttentionConfig
from sparing.models.supernet.config import SupernetConfig
from sparing.models.supernet.model import Supernet
from sparing.training.optim import (
    Adagrad,
    Lamb,
    Lookahead,
    Muon,
    OptimConfig,
    OptimizerSet,
    build_optimizer,
    freeze_others,
)
from sparing.training.optim.build import OptimizerName

NAMES = get_args(OptimizerName)
Make = Callable[[], LanguageModel]


def group_of(optimizer: OptimizerSet, name: str) -> dict[str, Any]:
    return next(group for group in optimizer.param_groups if name in group["param_names"])


@pytest.mark.parametrize("lookahead", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_every_trainable_parameter_is_in_exactly_one_group(
    tiny: Make, name: OptimizerName, lookahead: bool
) -> None:
    model = tiny()
    optimizer = build_optimizer(model, OptimConfig(name=name, lookahead=lookahead))
    found = sorted(name for group in optimizer.param_groups for name in group["param_names"])
    assert found == sorted(name for name, p in model.named_parameters() if p.requires_grad)
    assert "frozen" not in found


@pytest.mark.parametrize("lookahead", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_every_trainable_parameter_moves(
    tiny: Make, train: Callable[..., None], name: OptimizerName, lookahead: bool
) -> None:
    model, before = tiny(), tiny().state_dict()
    train(model, build_optimizer(model, OptimConfig(name=name, lookahead=lookahead)), range(2))
    after = model.state_dict()
    still = [name for name in before if torch.equal(before[name], after[name])]
    assert still == ["frozen"]


def test_only_the_chosen_parameters_move(tiny: Make, train: Callable[..., None]) -> None:
    model, before = tiny(), tiny().state_dict()
    freeze_others(model, ("*.bias", "froz*"))
    train(model, build_optimizer(model, OptimConfig()), range(2))
    after = model.state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {name for name in before if name.endswith(".bias")} != set()


def test_without_a_choice_nothing_is_frozen(tiny: Make) -> None:
    model = tiny()
    before = [parameter.requires_grad for parameter in model.parameters()]
    freeze_others(model, ())
    assert [parameter.requires_grad for parameter in model.parameters()] == before


def test_a_pattern_that_fits_no_parameter_is_refused(tiny: Make) -> None:
    with pytest.raises(UserError, match=r"no parameter is named blocks\.9\.\*; ") as refused:
        freeze_others(tiny(), ("*.bias", "blocks.9.*"))
    assert "`sparing info RUN --parameters` lists" in str(refused.value)


def test_the_named_optimizer_is_built(tiny: Make) -> None:
    kinds = {"lamb": [Lamb], "adam": [Adam], "adamw": [AdamW], "sgd": [SGD], "muon": [Muon, AdamW]}
    kinds["adagrad"] = [Adagrad]
    kinds |= {"asgd": [SGD], "ntasgd": [SGD]}
    for name in NAMES:
        built = build_optimizer(tiny(), OptimConfig(name=name)).optimizers
        assert [type(optimizer) for optimizer in built] == kinds[name]
        wrapped = build_optimizer(tiny(), OptimConfig(name=name, lookahead=True)).optimizers
        assert all(isinstance(optimizer, Lookahead) for optimizer in wrapped)


def test_muon_takes_the_matrices_in_their_blocks(tiny: Make) -> None:
    muon, rest = build_optimizer(tiny(), OptimConfig(name="muon")).optimizers
    blocks = {name: group["blocks"] for group in muon.param_groups for name in group["param_names"]}
    assert blocks == {"core.weight_ih_l0": 4, "core.weight_hh_l0": 4, "mix.weight": 1}
    assert {group["role"] for group in rest.param_groups} == {"table", "vector"}


def test_each_role_has_its_learning_rate(tiny: Make) -> None:
    names = ("mix.weight", "embedding.weight", "mix.bias")
    for config, expected in (
        (OptimConfig(name="adamw", lr=0.1), (0.1, 0.1, 0.1)),
        (OptimConfig(name="adamw", lr=0.1, table_lr=0.2, vector_lr=0.3), (0.1, 0.2, 0.3)),
        (OptimConfig(name="muon", lr=0.1), (0.1, 0.015, 0.015)),
        (OptimConfig(name="muon", lr=0.1, table_lr=0.2), (0.1, 0.2, 0.015)),
    ):
        optimizer = build_optimizer(tiny(), config)
        rates = [group_of(optimizer, name)["lr"] for name in names]
        assert rates == pytest.approx(expected)


def test_vectors_are_decayed_unless_told_otherwise(tiny: Make) -> None:
    for decayed in (True, False):
        config = OptimConfig(weight_decay=0.1, decay_vectors=decayed)
        optimizer = build_optimizer(tiny(), config)
        assert group_of(optimizer, "mix.weight")["weight_decay"] == 0.1
        assert group_of(optimizer, "embedding.weight")["weight_decay"] == 0.1
        assert group_of(optimizer, "mix.bias")["weight_decay"] == (0.1 if decayed else 0.0)


@pytest.mark.parametrize(
    ("config", "key", "expected"),
    [
        (OptimConfig(name="lamb"), "eps", 1e-6),
        (OptimConfig(name="lamb"), "min_trust", 0.25),
        (OptimConfig(name="lamb", min_trust=0.0), "min_trust", 0.0),
        (OptimConfig(name="adam"), "eps", 1e-8),
        (OptimConfig(name="adamw", eps=0.1, betas=(0.5, 0.6)), "eps", 0.1),
        (OptimConfig(name="adamw", eps=0.1, betas=(0.5, 0.6)), "betas", (0.5, 0.6)),
        (OptimConfig(name="sgd"), "momentum", 0.0),
        (OptimConfig(name="sgd", momentum=0.9), "momentum", 0.9),
        (OptimConfig(name="adagrad", tensor_clip=0.03), "tensor_clip", 0.03),
        (OptimConfig(name="muon"), "momentum", 0.95),
        (OptimConfig(name="muon", momentum=0.9), "momentum", 0.9),
    ],
)
def test_settings_reach_the_optimizer(
    tiny: Make, config: OptimConfig, key: str, expected: object
) -> None:
    assert group_of(build_optimizer(tiny(), config), "mix.weight")[key] == expected


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_a_state_made_early_changes_no_step(
    tiny: Make, train: Callable[..., None], name: OptimizerName, momentum: float
) -> None:
    config = OptimConfig(name=name, lr=0.1, momentum=momentum, weight_decay=0.01)
    seeded, lazy = tiny(), tiny()
    train(seeded, build_optimizer(seeded, config), range(3))
    optimizer = build_optimizer(lazy, config)
    for inner in optimizer.optimizers:
        inner.state.clear()
    train(lazy, optimizer, range(3))
    torch.testing.assert_close(seeded.state_dict(), lazy.state_dict(), rtol=0, atol=0)


def test_preferences_of_a_super_net_have_a_rate_and_a_decay_of_their_own() -> None:
    relative = RelativeAttentionConfig(heads=2, head_dim=4, memory=4)
    config = SupernetConfig(
        vocab_size=7, pattern="xf", dim=8, relative=relative, feedforward=FeedForwardConfig(dim=8)
    )
    model = Supernet(config)
    settings = OptimConfig(
        name="muon", lr=0.02, architecture_lr=0.3, architecture_decay=5e-4, weight_decay=0.1
    )
    group = group_of(build_optimizer(model, settings), "logits")
    assert (group["role"], group["lr"], group["weight_decay"]) == ("architecture", 0.3, 5e-4)
    assert group["param_names"] == ["logits"]
    plain = group_of(build_optimizer(model, OptimConfig(name="adam", lr=1e-3)), "logits")
    assert (plain["lr"], plain["weight_decay"]) == (1e-3, 0.0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("lr", -1.0),
        ("lr", float("nan")),
        ("table_lr", float("inf")),
        ("eps", -1e-8),
        ("clip", -0.1),
        ("tensor_clip", -0.1),
        ("weight_decay", -0.1),
        ("momentum", 1.0),
        ("patience", 0),
        ("betas", (0.9, 1.0)),
        ("betas", (-0.1, 0.9)),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(UserError, match=field):
        OptimConfig(**{field: value})


def test_settings_survive_json_and_the_command_line() -> None:
    config = with_settings(OptimConfig(), ["name=muon", "lr=0.02", "betas=0.8,0.95", "eps=none"])
    assert config == OptimConfig(name="muon", lr=0.02, betas=(0.8, 0.95))
    assert from_json(OptimConfig, to_json(config)) == config
