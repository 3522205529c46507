"""A run's config: defaults for what is missing, what a checkpoint must agree on, memory."""

from pathlib import Path
from typing import Any

import pytest
import torch

from sparing.errors import UserError
from sparing.runs.config import (
    RunConfig,
    complete_identity,
    for_vocab,
    from_json,
    to_json,
    with_memory,
    with_settings,
)
from sparing.runs.recipes import RECIPES, recipe
from sparing.training import checkpoint
from sparing.training.checkpoint import Checkpoint


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_survives_its_file(name: str) -> None:
    assert from_json(to_json(recipe(name))) == recipe(name)


def without(run: RunConfig, *path: str) -> dict[str, Any]:
    """The JSON of a run as a version wrote it that did not have this setting."""
    data = to_json(run)
    group = data
    for name in path[:-1]:
        group = group[name]
    del group[path[-1]]
    return data


@pytest.mark.parametrize(
    "path", [("model", "windowed", "ramp"), ("model", "qrnn"), ("train", "state_reset")]
)
def test_a_setting_missing_in_a_stored_config_takes_its_default(path: tuple[str, ...]) -> None:
    run = recipe("enwik8_20min")
    assert from_json(without(run, *path)) == run


def save(folder: Path, identity: dict[str, Any]) -> None:
    weights = {"model": {"w": torch.zeros(1)}}
    checkpoint.save(folder, "last", Checkpoint(weights, {"step": 1}), identity)


def test_a_checkpoint_older_than_a_setting_is_of_the_default(tmp_path: Path) -> None:
    run = recipe("enwik8_20min")
    save(tmp_path, {"family": "stack", "model": without(run, "model", "windowed", "ramp")["model"]})
    checkpoint.load(tmp_path, "last", run.identity(), complete_identity)
    other = with_settings(run, ["model.windowed.ramp=16"])
    with pytest.raises(UserError, match=r"model\.windowed\.ramp is 32 there and 16 here"):
        checkpoint.load(tmp_path, "last", other.identity(), complete_identity)


@pytest.mark.parametrize(
    "stored", [{}, {"family": "unknown"}, {"family": "stack", "model": {"vocab_size": 3, "new": 1}}]
)
def test_an_unknown_identity_is_of_another_model(tmp_path: Path, stored: Any) -> None:
    save(tmp_path, stored)
    with pytest.raises(UserError, match="another model"):
        checkpoint.load(tmp_path, "last", recipe("quickstart").identity(), complete_identity)


def test_a_vocabulary_that_does_not_fit_is_refused() -> None:
    with pytest.raises(UserError, match="bad setting"):
        for_vocab(recipe("wikitext2_par_search"), 100)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("quickstart", ["model.memory=7"]),
        ("enwik8_interleaved", ["model.relative.memory=7", "model.single_head.memory=7"]),
        ("enwik8_mlstm", []),
    ],
)
def test_every_memory_of_a_model_gets_its_length(name: str, changed: list[str]) -> None:
    assert with_memory(recipe(name), 7) == with_settings(recipe(name), changed)
