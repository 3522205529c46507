"""What the command line makes of a recipe before it is trained."""

import pytest

from sparing.cli.main import main
from sparing.cli.train import apply_settings
from sparing.runs.recipes import recipe


@pytest.mark.parametrize("name", ["enwik8_adaptive_span", "enwik8_small", "quickstart"])
def test_a_given_budget_replaces_that_of_the_recipe(name: str) -> None:
    train = apply_settings(recipe(name), [], 5.0, None).train
    assert (train.minutes, train.steps, train.epochs) == (5, None, None)
    train = apply_settings(recipe(name), ["train.steps=100"], 5.0, None).train
    assert (train.minutes, train.steps, train.epochs) == (5, 100, None)
    train = apply_settings(recipe(name), ["train.epochs=2"], None, None).train
    assert (train.minutes, train.steps, train.epochs) == (None, None, 2)


@pytest.mark.parametrize("option", [["--checkpoint", "best"], ["--cut-journal"]])
def test_options_of_a_resume_need_one(
    option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "quickstart", *option]) == 2
    assert f"{option[0]} needs --resume" in capsys.readouterr().err
