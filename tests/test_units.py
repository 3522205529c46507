"""Conversions, against numbers worked out by hand."""

import math

import pytest

from sparing import units


def test_bits_per_byte_and_perplexity() -> None:
    assert units.bits_per_byte(math.log(2) * 24, 8) == pytest.approx(3.0)
    assert units.perplexity(math.log(7) * 5, 5) == pytest.approx(7.0)
    assert units.perplexity(1e9, 1) == math.inf


def test_pluralize() -> None:
    assert [units.pluralize(n, "byte") for n in (0, 1, 2)] == ["0 bytes", "1 byte", "2 bytes"]
    assert units.pluralize(1500, "piece") == "1,500 pieces"
    assert [units.pluralize(n, "process") for n in (1, 2)] == ["1 process", "2 processes"]


def test_durations_have_sensible_units() -> None:
    shown = [units.format_duration(minutes) for minutes in (0.5, 12.34, 20.001, 750, 4000)]
    assert shown == ["30 s", "12.3 min", "20 min", "12.5 h", "2.78 days"]


@pytest.mark.parametrize(
    ("size", "text"), [(3, "3 B"), (1536, "1.5 KiB"), (5 * 2**20, "5.0 MiB"), (2**41, "2.0 TiB")]
)
def test_format_bytes(size: float, text: str) -> None:
    assert units.format_bytes(size) == text
