"""The model card says what was measured, and how."""

from sparing.export.hf.card import model_card
from sparing.runs.config import to_json
from sparing.runs.recipes import recipe

RUN = to_json(recipe("enwik8_small"))


def test_every_figure_has_its_protocol() -> None:
    results = {
        "training": {"steps": 3},
        "test": {"bits_per_byte": 1.25, "bytes": 5000, "protocol": "bytes", "how": "8 streams"},
        "valid": {"bits_per_byte": 1.5, "bytes": 100, "protocol": "bytes", "how": "windows"},
    }
    card = model_card(RUN, results, parameters=1234567, step=9, checkpoint="best")
    assert "1,234,567 parameters" in card
    assert "| text | bits per byte | bytes | protocol | read as |" in card
    assert "| test | 1.2500 | 5,000 | bytes | 8 streams |" in card
    assert "| valid | 1.5000 | 100 | bytes | windows |" in card
    assert "training |" not in card


def test_a_run_without_figures_says_so() -> None:
    card = model_card(RUN, {"training": {"steps": 3}}, parameters=1, step=9, checkpoint="best")
    assert "None were measured" in card
