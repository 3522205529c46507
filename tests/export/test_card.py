"""The model card says what was measured, and how."""

from typing import Any

from tests.export.hf.conftest import LETTERS
from tests.models.tiny import tiny

from sparing.export.card import model_card
from sparing.export.trained import Trained
from sparing.runs.config import to_json
from sparing.runs.recipes import recipe


def card(results: dict[str, Any]) -> str:
    trained = Trained(
        model=tiny("mlstm"),
        vocab=LETTERS,
        settings=to_json(recipe("enwik8_small")),
        results=results,
        records={},
        checkpoint="best",
        step=9,
    )
    return model_card(trained, library="transformers", use="Use it.", parameters=1234567)


def test_every_figure_has_its_protocol() -> None:
    text = card(
        {
            "training": {"steps": 3},
            "test": {"bits_per_byte": 1.25, "bytes": 5000, "protocol": "bytes", "how": "8 streams"},
            "valid": {"bits_per_byte": 1.5, "bytes": 100, "protocol": "bytes", "how": "windows"},
        }
    )
    assert "1,234,567 parameters" in text
    assert "checkpoint `best`, step 9" in text
    assert "| text | bits per byte | bytes | protocol | read as |" in text
    assert "| test | 1.2500 | 5,000 | bytes | 8 streams |" in text
    assert "| valid | 1.5000 | 100 | bytes | windows |" in text
    assert "training |" not in text


def test_a_run_without_figures_says_so() -> None:
    text = card({"training": {"steps": 3}})
    assert "None were measured" in text
    assert "Use it." in text
