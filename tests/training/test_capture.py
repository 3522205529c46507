"""What of a training goes into a checkpoint, and what a checkpoint is refused for."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.models.tiny import tiny
from tests.training.toy import toy_training
from torch import Tensor

from sparing import __version__
from sparing.errors import UserError
from sparing.training.capture import (
    capture,
    load_model_tensors,
    model_tensors,
    restore,
    start_second_pass,
)
from sparing.training.checkpoint import Checkpoint


def test_tables_made_from_settings_stay_out() -> None:
    model = tiny("stack")
    names = model_tensors(model).keys()
    assert any("cosine" in name for name, _ in model.named_buffers())
    assert not any("cosine" in name or "sine" in name for name in names)
    assert {name for name, _ in model.named_parameters()} <= names


def test_buffers_that_learn_are_kept() -> None:
    assert {"price", "last_choices", "stable_checks"} <= model_tensors(tiny("supernet")).keys()


def captured(stem: str = "", **tensors: Tensor | None) -> Checkpoint:
    """The checkpoint of a new training, with some of its tensors replaced or left out."""
    saved = capture(toy_training())
    if not stem:
        return saved
    kept = {**saved.tensors[stem], **tensors}
    whole = {name: tensor for name, tensor in kept.items() if tensor is not None}
    return replace(saved, tensors={**saved.tensors, stem: whole})


def first_weight(model: Any) -> tuple[str, Tensor]:
    name, tensor = next(iter(model_tensors(model).items()))
    return name, tensor.detach().clone()


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, torch.int64, torch.complex64])
def test_weights_that_are_no_finite_floats_are_refused_by_name(wrong: Any) -> None:
    model = toy_training().model
    name, tensor = first_weight(model)
    before = {key: each.clone() for key, each in model_tensors(model).items()}
    if isinstance(wrong, float):
        tensor.view(-1)[-1] = wrong
    else:
        tensor = tensor.to(wrong)
    with pytest.raises(UserError, match=name) as refusal:
        load_model_tensors(model, {**before, name: tensor})
    assert "\n" not in str(refusal.value)
    assert all(torch.equal(each, before[key]) for key, each in model_tensors(model).items())


def test_rounded_weights_are_accepted() -> None:
    model = toy_training().model
    rounded = {name: tensor.bfloat16() for name, tensor in model_tensors(model).items()}
    load_model_tensors(model, rounded)
    assert all(torch.equal(model_tensors(model)[name], rounded[name].float()) for name in rounded)


def test_an_optimizer_state_that_is_not_a_number_is_refused() -> None:
    name, tensor = next(
        (name, tensor)
        for name, tensor in toy_training().optimizer.tensors().items()
        if tensor.ndim and tensor.is_floating_point()
    )
    with pytest.raises(UserError, match="is not a number"):
        restore(toy_training(), captured("optimizer", **{name: torch.full_like(tensor, torch.nan)}))


@pytest.mark.parametrize(
    "found",
    [
        None,
        torch.zeros(3),
        torch.zeros(7, dtype=torch.uint8),
        torch.zeros_like(torch.get_rng_state()),
    ],
)
def test_without_a_random_generator_nothing_is_resumed(found: Tensor | None) -> None:
    with pytest.raises(UserError, match=r"random generator \(rng.cpu\)"):
        restore(toy_training(), captured("state", **{"rng.cpu": found}))


@pytest.mark.parametrize("way", [restore, start_second_pass])
def test_a_field_of_a_newer_version_is_refused_with_that_version(way: Any) -> None:
    saved = captured()
    newer = replace(saved, cursor={**saved.cursor, "lookahead": 3}, version="9.1")
    with pytest.raises(UserError, match=rf"version 9\.1 of sparing: 'lookahead'.*{__version__}"):
        way(toy_training(), newer)


def test_fields_that_an_older_version_did_not_write_have_their_defaults() -> None:
    saved, training = captured(), toy_training()
    older = {key: value for key, value in saved.cursor.items() if key != "micro_batches"}
    restore(training, replace(saved, cursor=older))
    assert training.counters.micro_batches == 1


def test_a_restored_state_is_aligned_as_one_that_was_carried() -> None:
    # In a file tensors begin anywhere, and then matrix products may differ in their last bits.
    saved, training = captured(), toy_training()
    carried = {f"state.{name}": unaligned(each) for name, each in training.state.items()}
    state = {**saved.tensors["state"], **carried}
    restore(training, replace(saved, tensors={**saved.tensors, "state": state}))
    assert any(tensor.numel() for tensor in training.state.values())
    for name, tensor in training.state.items():
        assert torch.equal(tensor, carried[f"state.{name}"])
        assert tensor.numel() == 0 or tensor.data_ptr() % 64 == 0


def unaligned(tensor: Tensor) -> Tensor:
    """The same numbers, 8 bytes behind an aligned place."""
    room = torch.empty(tensor.nbytes + 8, dtype=torch.uint8)
    moved = room[8:].view(tensor.dtype).view(tensor.shape)
    return moved.copy_(tensor)
