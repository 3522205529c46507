"""The published results, checked for consistency."""

import pytest

from sparing.plot.published import PUBLISHED, by_epoch

NAMED = {other.name: other for other in PUBLISHED}


def test_every_published_result_has_a_source() -> None:
    assert len(NAMED) == len(PUBLISHED)
    for other in PUBLISHED:
        assert 0.9 < other.bits_per_byte < 1.3
        assert other.source
        assert other.hardware
        if other.minutes is not None:
            assert 0 < other.minutes[0] <= other.minutes[1]


def test_a_published_curve_ends_at_the_time_of_its_test_result_and_above_it() -> None:
    for other in PUBLISHED:
        if other.valid:
            assert other.minutes == pytest.approx([other.valid[-1][0]] * 2)
            assert other.valid[-1][1] > other.bits_per_byte


def test_epochs_become_minutes() -> None:
    assert list(by_epoch([1.3, 1.2], 90)) == [(1.5, 1.3), (3.0, 1.2)]
    curve = NAMED["SHA-RNN, four attention layers"].valid
    assert len(curve) == 20
    assert curve[0] == pytest.approx([67, 1.315])
    assert curve[-1][0] / 60 == pytest.approx(22, abs=0.5)


def test_an_unpublished_time_is_left_out() -> None:
    assert NAMED["Transformer-XL, 12 layers"].minutes is None


def test_only_unusual_readings_are_mentioned() -> None:
    otherwise = {name: other.reading for name, other in NAMED.items() if other.reading}
    assert otherwise == {
        "plain GPT (calibration script)": "overlapping windows of 2048",
        "Expire-Span, 12 layers": "no newlines",
        "Transformer-XL, 12 layers": "no newlines",
    }
    assert not any("our" in f"{other.name} {other.source}".split() for other in PUBLISHED)
