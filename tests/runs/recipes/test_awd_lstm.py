"""The recipes hold what was published."""

import pytest

from sparing.models.cost import cost
from sparing.runs.build import build_model
from sparing.runs.recipes import expectation, recipe

PUBLISHED = {
    "wikitext2_awd_lstm": (33_556_078, "65.6"),
    "enwik8_awd_lstm": (47_270_045, "1.232"),
    "wikitext103_awd_qrnn": (153_886_638, "33.0"),
    "enwik8_mlstm": (45_495_405, "1.24 "),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_size_and_expectation(name: str) -> None:
    parameters, figure = PUBLISHED[name]
    run = recipe(name)
    assert run.recipe == name
    assert cost(build_model(run, "meta")).parameters_training == parameters
    assert f" {figure}" in expectation(name)


def test_an_epoch_of_the_mlstm_has_as_many_steps_as_its_schedule_was_made_for() -> None:
    train = recipe("enwik8_mlstm").train
    assert 90_000_000 / (train.batch * train.segment) * train.epochs == 180_000
