"""A search from recipe to pattern, and the planted one it must find."""

from pathlib import Path

import pytest
import torch
from tests.search.copying import NEEDED, search
from tests.search.small import small_search

from sparing.device import Hardware
from sparing.errors import UserError
from sparing.runs.recipes import recipe
from sparing.search.run import Budget, priced

CPU = Hardware(torch.device("cpu"), "float32")


def test_it_finds_the_one_block_that_needs_attention(tmp_path: Path) -> None:
    assert search(tmp_path, seed=0) == NEEDED


@pytest.mark.soak
def test_it_finds_it_with_at_least_four_seeds_of_five(tmp_path: Path) -> None:
    found = []
    for seed in range(5):
        (tmp_path / str(seed)).mkdir()
        found.append(search(tmp_path / str(seed), seed))
    assert found.count(NEEDED) >= 4, found


def test_a_budget_is_priced_in_the_currency_asked_for() -> None:
    run = priced(small_search(), Budget(share=0.9, currency="parameters"), CPU)
    c = run.model
    assert c.budget == 0.9
    assert c.costs[2] == 0
    assert min(c.costs[:2]) > 100
    assert c.ceiling == pytest.approx(0.9 * (c.fixed_cost + 2 * sum(c.costs)) - c.fixed_cost)


def test_a_budget_below_everything_but_the_blocks_is_refused_with_the_prices() -> None:
    with pytest.raises(UserError, match="before any block") as said:
        priced(small_search(), Budget(share=0.1, currency="parameters"), CPU)
    assert "\n" not in str(said.value)


def test_a_recipe_that_is_no_search_is_refused() -> None:
    with pytest.raises(UserError, match="no search"):
        priced(recipe("quickstart"), Budget(share=0.5), CPU)
