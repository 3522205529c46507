"""Checks of settings: what passes, and the name in the message."""

import math

import pytest

from sparing.nn.checks import MAX_MODULES, check_at_least, check_counts, check_rates


def test_values_within_their_bounds_pass() -> None:
    check_counts(heads=MAX_MODULES, depth=1)
    check_at_least(1, dim=1, heads=8)
    check_rates(dropout=0.0, weight_drop=0.99)


def test_a_value_out_of_bounds_is_named() -> None:
    with pytest.raises(ValueError, match="heads must be at most 1,000, not 1,001"):
        check_counts(depth=3, heads=MAX_MODULES + 1)
    with pytest.raises(ValueError, match="memory must be at least 0, not -1"):
        check_at_least(0, dim=3, memory=-1)
    for rate in (1.0, -0.1, math.nan):
        with pytest.raises(ValueError, match="dropout must be at least 0 and below 1"):
            check_rates(dropout=rate)


def test_nan_is_below_every_bound() -> None:
    with pytest.raises(ValueError, match="weight must be at least 0, not nan"):
        check_at_least(0, weight=math.nan)
