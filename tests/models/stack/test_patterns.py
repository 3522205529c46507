"""Rules against the strings they stand for."""

import itertools
import math

import pytest

from sparing.models.stack.patterns import (
    IDENTITY,
    cost_of,
    fill_identities,
    interleaved,
    likeliest_pattern,
    par,
    random_pattern,
    sandwich,
    sha,
)

COSTS = {"x": 3.0, "f": 1.0, "i": 0.0}


def test_par_is_the_published_rule_as_x_transformers_reads_it() -> None:
    assert par(24) == "xffffxffffxffffxffffffff"
    assert par(32) == "xfff" * 6 + "f" * 8
    assert par(36) == "xff" * 7 + "f" * 15


@pytest.mark.parametrize("depth", [5, 6, 12, 24, 32, 48])
def test_par_has_one_attention_block_in_five_and_none_in_the_last_third(depth: int) -> None:
    pattern = par(depth)
    assert len(pattern) == depth
    assert pattern.count("x") == depth // 5
    assert "x" not in pattern[2 * depth // 3 + 1 :]


def test_par_without_attention_is_refused() -> None:
    with pytest.raises(ValueError, match="no attention"):
        par(4)


def test_the_other_rules() -> None:
    assert interleaved(6) == "xfxfxf"
    assert interleaved(3, "a", "b") == "aba"
    assert sandwich(4, 0) == "xfxfxfxf"
    assert sandwich(4, 2) == "xxxfxfff"
    assert sha(4) == "lblblsblb"
    with pytest.raises(ValueError, match="ends"):
        sandwich(2, 3)


@pytest.mark.parametrize("seed", range(5))
def test_random_patterns_cost_what_was_asked_for(seed: int) -> None:
    pattern = random_pattern(12, COSTS, 14.0, seed=seed)
    assert len(pattern) == 12
    assert cost_of(pattern, COSTS) == 14
    assert pattern == random_pattern(12, COSTS, 14.0, seed=seed)


def test_random_patterns_differ_with_the_seed() -> None:
    assert len({random_pattern(12, COSTS, 14.0, seed=seed) for seed in range(8)}) > 5


def log_probs(seed: int, slots: int) -> list[dict[str, float]]:
    import random

    draw = random.Random(seed)
    return [{letter: math.log(draw.random()) for letter in COSTS} for _ in range(slots)]


@pytest.mark.parametrize("seed", range(6))
def test_the_likeliest_pattern_under_a_limit_is_that_of_all_patterns(seed: int) -> None:
    slots, limit = log_probs(seed, 5), 6.0
    every = ["".join(letters) for letters in itertools.product(COSTS, repeat=5)]

    def log_prob(pattern: str) -> float:
        return sum(slot[letter] for slot, letter in zip(slots, pattern, strict=True))

    affordable = [pattern for pattern in every if cost_of(pattern, COSTS) <= limit]
    assert likeliest_pattern(slots, COSTS, limit) == max(affordable, key=log_prob)
    assert likeliest_pattern(slots, COSTS) == max(every, key=log_prob)


@pytest.mark.parametrize("seed", range(6))
def test_idle_slots_are_filled_as_far_as_a_budget_goes(seed: int) -> None:
    slots, limit = log_probs(seed, 5), 6.0
    before = likeliest_pattern(slots, COSTS, limit)
    after = fill_identities(before, slots, COSTS, limit)
    assert cost_of(after, COSTS) <= limit
    cheapest = min(each for letter, each in COSTS.items() if letter != IDENTITY)
    assert IDENTITY not in after or cost_of(after, COSTS) + cheapest > limit
    assert all(old in (IDENTITY, new) for old, new in zip(before, after, strict=True))


def test_the_least_unlikely_block_comes_first() -> None:
    slots = [
        {"x": -3.0, "f": -2.0, "i": -0.1},
        {"x": -1.0, "f": -9.0, "i": -0.9},
        {"x": -5.0, "f": -0.8, "i": -0.1},
    ]
    # Odds against nothing: f -1.9, then x -0.1, then f -0.7; dearest first, as it is likeliest.
    assert fill_identities("iii", slots, COSTS, 3.0) == "ixi"
    assert fill_identities("iii", slots, COSTS, 4.0) == "ixf"
    assert fill_identities("iii", slots, COSTS, 5.0) == "fxf"


def test_a_filled_slot_no_longer_costs_what_it_did() -> None:
    even = [{"x": 0.0, "i": 0.0}] * 2
    assert fill_identities("xi", even, {"x": 2.0, "i": 1.0}, 4.0) == "xx"


def test_a_limit_nothing_fits_under_is_refused() -> None:
    with pytest.raises(ValueError, match="no pattern"):
        likeliest_pattern([{"x": 0.0}], {"x": 2.0}, 1.0)
