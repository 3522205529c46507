"""The learning rate's course, against tables worked out by hand."""

import pytest

from sparing.errors import UserError
from sparing.training.schedule import ScheduleConfig, lr_factor


@pytest.mark.parametrize(
    ("step", "expected"),
    [(1, 1 / 800), (400, 0.5), (799, 799 / 800), (800, 1.0), (801, 1.0), (10**6, 1.0)],
)
def test_warmup_counts_from_one_as_in_the_seed(step: int, expected: float) -> None:
    config = ScheduleConfig(shape="constant", warmup=800)
    assert lr_factor(config, step, 0.9) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize(
    ("step", "expected"),
    [(1, 0.1), (10, 1.0), (100, 1.0), (101, 0.99), (150, 0.5), (199, 0.01), (200, 0.0), (900, 0.0)],
)
def test_cooldown_is_full_until_its_step_and_zero_at_twice_that(step: int, expected: float) -> None:
    config = ScheduleConfig(shape="cooldown", warmup=10, cooldown=100)
    assert lr_factor(config, step, 0.0) == pytest.approx(expected, abs=1e-12)


def test_a_cooldown_during_the_warmup_never_turns_the_rate_negative() -> None:
    config = ScheduleConfig(shape="cooldown", warmup=800, cooldown=100)
    assert [lr_factor(config, step, 0.0) for step in (150, 200, 800)] == [0.0, 0.0, 0.0]


def test_without_a_step_the_cooldown_never_comes() -> None:
    assert lr_factor(ScheduleConfig(shape="cooldown"), 10**9, 1.0) == 1.0


@pytest.mark.parametrize(
    ("fraction", "expected"),
    [(0.0, 1.0), (0.25, 0.8681980515), (0.5, 0.55), (0.75, 0.2318019485), (1.0, 0.1), (1.2, 0.1)],
)
def test_cosine_ends_at_its_floor(fraction: float, expected: float) -> None:
    config = ScheduleConfig(shape="cosine", floor=0.1)
    assert lr_factor(config, 1, fraction) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("fraction", "expected"),
    [(0.0, 1.0), (0.6, 1.0), (0.7, 0.8), (0.8, 0.6), (1.0, 0.2), (7.0, 0.2)],
)
def test_linear_holds_before_it_falls(fraction: float, expected: float) -> None:
    config = ScheduleConfig(shape="linear", floor=0.2, hold=0.6)
    assert lr_factor(config, 1, fraction) == pytest.approx(expected, abs=1e-12)


def test_cosine_holds_before_it_falls() -> None:
    config = ScheduleConfig(shape="cosine", hold=0.5)
    values = [lr_factor(config, 1, fraction) for fraction in (0.5, 0.75, 1.0)]
    assert values == pytest.approx([1.0, 0.5, 0.0])


@pytest.mark.parametrize(
    ("epoch", "expected"), [(0, 1.0), (24.9, 1.0), (25, 0.1), (34.9, 0.1), (35, 0.01), (50, 0.01)]
)
def test_each_drop_divides_by_ten(epoch: float, expected: float) -> None:
    config = ScheduleConfig(shape="drops", drops=(25 / 50, 35 / 50))
    assert lr_factor(config, 1, epoch / 50) == pytest.approx(expected)


@pytest.mark.parametrize("step", [0, 1000, 54_000, 100_000, 100_440, 108_000, 180_000])
def test_a_decay_may_end_before_the_run(step: int) -> None:
    floor = 7e-5 / 1e-3
    config = ScheduleConfig(shape="linear", floor=floor, end=108 / 180 * (1 - floor))
    expected = max(7e-5, 1e-3 * (1 - step / 108_000))
    assert 1e-3 * lr_factor(config, 1, step / 180_000) == pytest.approx(expected)


def test_warmup_and_decay_multiply() -> None:
    config = ScheduleConfig(shape="linear", warmup=4)
    assert lr_factor(config, 2, 0.5) == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("warmup", -1),
        ("cooldown", -1),
        ("floor", 1.5),
        ("floor", -0.1),
        ("hold", 1.0),
        ("end", 0.0),
        ("end", 1.1),
        ("drops", (0.5, 1.5)),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(UserError, match=field):
        ScheduleConfig(**{field: value})


@pytest.mark.parametrize(
    ("step", "expected"), [(1, 1 / 32), (16, 0.5), (32, 1.0), (150, 1.0), (151, 0.1), (170, 0.1)]
)
def test_a_constant_rate_drops_for_the_last_steps_as_adaptive_span_is_fine_tuned(
    step: int, expected: float
) -> None:
    config = ScheduleConfig(shape="drops", warmup=32, drops=(150 / 170,))
    assert lr_factor(config, step, (step - 1) / 170) == pytest.approx(expected)
