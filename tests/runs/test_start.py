"""What a recipe becomes before it is trained."""

from pathlib import Path

import pytest

from sparing.runs.recipes import recipe
from sparing.runs.start import apply_settings, assignments


@pytest.mark.parametrize("name", ["enwik8_adaptive_span", "enwik8_small", "quickstart"])
def test_a_given_budget_replaces_that_of_the_recipe(name: str) -> None:
    train = apply_settings(recipe(name), [], 5.0, None).train
    assert (train.minutes, train.steps, train.epochs) == (5, None, None)
    train = apply_settings(recipe(name), ["train.steps=100"], 5.0, None).train
    assert (train.minutes, train.steps, train.epochs) == (5, 100, None)
    train = apply_settings(recipe(name), ["train.epochs=2"], None, None).train
    assert (train.minutes, train.steps, train.epochs) == (None, None, 2)


def test_a_text_named_by_a_setting_is_found_from_other_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notes.txt").touch()
    monkeypatch.chdir(tmp_path)
    for run in (
        apply_settings(recipe("quickstart"), ["data.corpus=notes.txt"], None, None),
        apply_settings(recipe("quickstart"), [], None, "notes.txt"),
    ):
        assert run.data.corpus == str(tmp_path / "notes.txt")
    run = apply_settings(recipe("quickstart"), ["data.corpus = text8"], None, None)
    assert run.data.corpus == "text8"


def test_settings_of_a_mapping_are_read_back_as_they_were() -> None:
    given = {
        "model.attention_at": (1,),
        "model.dim": 32,
        "train.compiled": False,
        "train.minutes": None,
        "train.epochs": 2,
        "optim.lr": 1e-3,
        "data.corpus": "text8",
    }
    run = apply_settings(recipe("quickstart"), assignments(given), None, None)
    assert (run.model.attention_at, run.model.dim) == ((1,), 32)  # type: ignore[attr-defined]
    assert (run.train.compiled, run.train.minutes, run.train.epochs) == (False, None, 2)
    assert (run.optim.lr, run.data.corpus) == (1e-3, "text8")
