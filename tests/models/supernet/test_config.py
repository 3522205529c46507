"""A super-net's settings: what is refused, and what a budget allows."""

from typing import Any

import pytest

from sparing.config import with_settings
from sparing.errors import UserError
from sparing.models.stack.config import StackConfig, WindowedAttentionConfig
from sparing.models.supernet.config import SearchConfig, SupernetConfig
from sparing.runs.config import from_json

PRICED: dict[str, Any] = {"costs": (3.0, 1.0, 0.0), "fixed_cost": 2.0, "budget": 0.5}


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"candidates": "x"}, "two or more"),
        ({"candidates": "xq"}, "no block 'q'"),
        ({"budget": 0.5}, "cost of every candidate"),
        ({"costs": (3.0, 1.0)}, "2 costs for 3 candidates"),
        ({**PRICED, "budget": 0.1}, "cheapest network"),
        ({**PRICED, "candidates": "xai"}, "none of the candidates"),
        ({"tau_end": 0.0}, "above 0"),
        ({"weights_only": 2.0}, "a share"),
        ({"resample_every": 0}, "resample_every must be at least 1"),
        ({"turn": -1}, "turn must be at least 0"),
    ],
)
def test_nonsense_is_refused_in_one_line(settings: dict[str, Any], complaint: str) -> None:
    search = {**settings, "costs": list(settings.get("costs", ()))}
    model = {"pattern": "xf", "vocab_size": 7, "search": search}
    data = {"recipe": "r", "family": "supernet", "model": model, "train": {"steps": 1}}
    with pytest.raises(UserError, match=complaint) as said:
        from_json(data)
    assert "\n" not in str(said.value)


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [("mtp.tokens=2", "mtp.tokens must be 0"), ("rounds=2", "rounds must be 1")],
)
def test_what_only_a_stack_can_do_is_refused(setting: str, complaint: str) -> None:
    config = SupernetConfig(vocab_size=7, pattern="[xf]")
    with pytest.raises(UserError, match=complaint):
        with_settings(config, [setting])


def test_a_budget_is_a_share_of_the_whole_and_leaves_the_rest_to_the_blocks() -> None:
    config = SupernetConfig(vocab_size=7, pattern="xfxf", search=SearchConfig(**PRICED))
    assert config.search.costs_by_letter == {"x": 3.0, "f": 1.0, "i": 0.0}
    assert config.cost_limit == 0.5 * (2 + 2 * 3 + 2 * 1) - 2
    assert config.all_letters == "fix"


def test_a_search_has_the_shape_of_its_stack() -> None:
    stack = StackConfig(
        vocab_size=7, pattern="xf", dim=8, windowed=WindowedAttentionConfig(heads=2)
    )
    config = SupernetConfig.of(stack, SearchConfig(candidates="af"))
    assert config.search.candidates == "af"
    assert config.plain_stack() == stack == stack.plain_stack()
