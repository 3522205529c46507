"""What the package stores about its model is what the model is."""

from pathlib import Path

from sparing.runs.bundled import run_or_bundled
from sparing.runs.card import read_card
from sparing.runs.costs import costs


def test_the_stored_costs_are_those_of_the_bundled_model() -> None:
    card = read_card()
    assert card is not None
    config, stored = card
    assert stored == costs(run_or_bundled(None).config())
    assert config["recipe"] == "enwik8_small_init_states"


def test_a_folder_without_stored_costs_has_no_card(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert read_card(tmp_path) is None
