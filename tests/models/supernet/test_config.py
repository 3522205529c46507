"""A super-net's settings: what is refused, and what a budget allows."""

from typing import Any

import pytest

from sparing.errors import UserError
from sparing.models.supernet.config import SupernetConfig
from sparing.runs.config import from_json

PRICED: dict[str, Any] = {"costs": (3.0, 1.0, 0.0), "fixed_cost": 2.0, "budget": 0.5}


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"candidates": "x"}, "two or more"),
        ({"candidates": "xq"}, "no block 'q'"),
        ({"mtp": 2}, "mtp must be 0"),
        ({"budget": 0.5}, "every candidate's cost"),
        ({"costs": (3.0, 1.0)}, "2 costs for 3 candidates"),
        ({**PRICED, "budget": 0.1}, "cheapest network"),
        ({**PRICED, "candidates": "xai"}, "none of the candidates"),
        ({"tau_end": 0.0}, "above 0"),
        ({"warmup": 2.0}, "a share"),
    ],
)
def test_nonsense_is_refused_in_one_line(settings: dict[str, Any], complaint: str) -> None:
    model = {"pattern": "xf", **settings, "vocab_size": 7}
    if "costs" in model:
        model["costs"] = list(model["costs"])
    data = {"recipe": "r", "family": "supernet", "model": model, "train": {"steps": 1}}
    with pytest.raises(UserError, match=complaint):
        from_json(data)


def test_a_budget_is_a_share_of_the_whole_and_leaves_the_rest_to_the_blocks() -> None:
    config = SupernetConfig(vocab_size=7, pattern="xfxf", **PRICED)
    assert config.price_list == {"x": 3.0, "f": 1.0, "i": 0.0}
    assert config.ceiling == 0.5 * (2 + 2 * 3 + 2 * 1) - 2
    assert config.known == "fix"
