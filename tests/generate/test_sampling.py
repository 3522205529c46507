"""Every filter against numbers computed by hand."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparing.errors import UserError
from sparing.generate.sampling import SamplingConfig, filter_probabilities, sample

# Not sorted, so that ids and ranks differ.
PROBABILITIES = torch.tensor([[0.1, 0.4, 0.05, 0.25, 0.2]], dtype=torch.float64)
LOGITS = PROBABILITIES.log() + 7.0


def left(**settings: float) -> list[float]:
    return filter_probabilities(LOGITS, SamplingConfig(**settings))[0].tolist()


def drawn(uniform: float, **settings: float) -> int:
    config = SamplingConfig(**settings)
    return int(sample(LOGITS, config, torch.tensor([uniform], dtype=torch.float64)))


def test_nothing_is_filtered_by_default() -> None:
    assert left() == pytest.approx([0.1, 0.4, 0.05, 0.25, 0.2])


def test_temperature_raises_probabilities_to_its_inverse() -> None:
    squares = [0.01, 0.16, 0.0025, 0.0625, 0.04]
    assert left(temperature=0.5) == pytest.approx([x / 0.275 for x in squares])


def test_top_k_keeps_the_k_best() -> None:
    assert left(top_k=2) == pytest.approx([0, 40 / 65, 0, 25 / 65, 0])
    assert left(top_k=99) == pytest.approx(left())


def test_top_k_keeps_k_of_equally_probable_tokens() -> None:
    equal = filter_probabilities(torch.zeros(1, 4), SamplingConfig(top_k=2))
    assert equal.tolist() == [[0.5, 0.5, 0, 0]]


def test_top_p_keeps_the_smallest_sufficient_set() -> None:
    assert left(top_p=0.6) == pytest.approx([0, 40 / 65, 0, 25 / 65, 0])
    assert left(top_p=0.7) == pytest.approx([0, 40 / 85, 0, 25 / 85, 20 / 85])
    assert left(top_p=0.001) == pytest.approx([0, 1, 0, 0, 0])


def test_min_p_keeps_tokens_close_to_the_best() -> None:
    assert left(min_p=0.45) == pytest.approx([0, 40 / 85, 0, 25 / 85, 20 / 85])
    assert left(min_p=1.0) == pytest.approx([0, 1, 0, 0, 0])


def test_top_p_applies_after_temperature_and_top_k() -> None:
    # Of 0.4, 0.25, 0.2 the first two hold 65/85 = 0.76; of all five only 0.65.
    assert left(top_k=3, top_p=0.7) == pytest.approx([0, 40 / 65, 0, 25 / 65, 0])
    # Squared, the first two hold 0.2225 / 0.275 = 0.81.
    assert left(temperature=0.5, top_p=0.8) == pytest.approx([0, 160 / 222.5, 0, 62.5 / 222.5, 0])


def test_min_p_applies_after_temperature() -> None:
    # Squared, the second is 0.39 of the best; before, 0.625.
    assert left(temperature=0.5, min_p=0.5) == pytest.approx([0, 1, 0, 0, 0])


@pytest.mark.parametrize(
    ("uniform", "token"),
    [(0.0, 0), (0.09, 0), (0.11, 1), (0.49, 1), (0.52, 2), (0.6, 3), (0.81, 4)],
)
def test_tokens_are_sampled_by_cumulative_probability_in_the_order_of_ids(
    uniform: float, token: int
) -> None:
    assert drawn(uniform) == token


@pytest.mark.parametrize("uniform", [0.0, 0.3, 0.7, 1 - 2**-53])
def test_only_kept_tokens_are_sampled(uniform: float) -> None:
    assert drawn(uniform, top_k=1) == 1
    assert drawn(uniform, top_k=2) in (1, 3)
    assert drawn(uniform, temperature=1e-8) == 1
    assert drawn(uniform, temperature=0) == 1


def test_a_draw_of_one_gives_the_last_kept_token() -> None:
    assert drawn(1.0) == 4
    assert drawn(1.0, top_k=2) == 3


def test_rows_are_sampled_independently() -> None:
    logits = torch.stack([LOGITS[0], LOGITS[0].flip(0), LOGITS[0]])
    ids = sample(logits, SamplingConfig(), torch.tensor([0.6, 0.01, 0.99]))
    assert ids.tolist() == [3, 0, 4]
    assert sample(logits, SamplingConfig(temperature=0), torch.zeros(3)).tolist() == [1, 3, 1]


def test_a_token_of_probability_zero_is_never_sampled() -> None:
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf]])
    for uniform in (0.0, 0.5, 1 - 2**-53):
        draw = torch.tensor([uniform], dtype=torch.float64)
        assert sample(logits, SamplingConfig(), draw).tolist() == [1]


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("row", [[0, NAN, 1], [0, INF, 1], [-INF, -INF, -INF]])
def test_predictions_that_are_not_finite_are_refused(row: list[float], temperature: float) -> None:
    logits, draws = torch.tensor([[0.0, 1, 2], row]), torch.tensor([0.5, 0.5], dtype=torch.float64)
    with pytest.raises(UserError, match="the model predicts values that are not finite"):
        sample(logits, SamplingConfig(temperature=temperature), draws)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_token_may_be_impossible(temperature: float) -> None:
    logits, draw = torch.tensor([[-INF, 1, -INF]]), torch.tensor([0.5], dtype=torch.float64)
    assert sample(logits, SamplingConfig(temperature=temperature), draw).tolist() == [1]


@given(
    logits=st.lists(st.floats(-30, 30), min_size=1, max_size=8),
    top_k=st.integers(0, 9),
    top_p=st.floats(0.01, 1),
    min_p=st.floats(0, 1),
)
def test_filters_keep_the_best_token_and_normalise(
    logits: list[float], top_k: int, top_p: float, min_p: float
) -> None:
    config = SamplingConfig(top_k=top_k, top_p=top_p, min_p=min_p)
    probability = filter_probabilities(torch.tensor([logits]), config)[0]
    assert probability.sum().item() == pytest.approx(1)
    assert probability.max() > 0
    # Logits that float64 cannot tell apart after a softmax count as equal.
    best = max(logits)
    assert any(p > 0 for x, p in zip(logits, probability, strict=True) if x > best - 1e-6)
    if top_k:
        assert (probability > 0).sum() <= top_k


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"seed": -1},
    ],
)
def test_settings_out_of_range_are_refused_by_name(wrong: dict[str, float]) -> None:
    # As the command line spells it.
    with pytest.raises(UserError, match=next(iter(wrong)).replace("_", "-")):
        SamplingConfig(**wrong)
