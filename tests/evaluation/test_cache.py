"""The continuous cache against a worked example, a loop, and its limits."""

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.models.tiny import CONFIGS
from tests.models.tiny import tiny as family
from torch import Tensor, nn

from sparing.data.tokens import Split
from sparing.errors import UserError
from sparing.evaluation.cache import Cache, CacheConfig, evaluate_with_cache
from sparing.evaluation.loss import evaluate_streams

again = settings(
    max_examples=30,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


class Fair(nn.Module):
    """A head that finds four symbols equally likely."""

    def nats(self, hidden_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        return torch.full(targets_BT.shape, math.log(4)).double() * (targets_BT >= 0)


def test_the_cache_of_a_small_example_by_hand() -> None:
    cache = Cache(Fair(), CacheConfig(window=2, theta=0.5, share=0.25))
    hidden = torch.tensor([[[1.0, 0.0], [0.0, 2.0], [1.0, 1.0], [2.0, 0.0]]]).double()
    nats = cache.nats(hidden, torch.tensor([[3, 1, 3, 1]]))[0]
    first = 0.25
    second = 0.75 / 4 + 0.25 * 0
    # From [1, 1]: 3 was seen at [1, 0] (score 0.5), 1 at [0, 2] (score 1).
    third = 0.75 / 4 + 0.25 * math.exp(0.5) / (math.exp(0.5) + math.exp(1.0))
    # From [2, 0]: the first position has left; 1 was seen at [0, 2] (0), 3 at [1, 1] (1).
    fourth = 0.75 / 4 + 0.25 * 1 / (1 + math.exp(1.0))
    expected = [-math.log(p) for p in (first, second, third, fourth)]
    assert nats.tolist() == pytest.approx(expected)


def by_loop(model, split: Split, c: CacheConfig) -> float:
    """One token at a time, with the full distribution over the vocabulary."""
    text = torch.tensor([split.start, *split.ids.tolist()])[None]
    with torch.no_grad():
        hidden = model.eval()(text[:, :-1], model.initial_state(1)).hidden_BTD[0]
        logits = model.head.logits(hidden)
    total = 0.0
    for t, target in enumerate(split.ids.tolist()):
        p = logits[t].softmax(-1)
        past = range(max(0, t - c.window), t)
        if past:
            scores = torch.stack([c.theta * hidden[t] @ hidden[j] for j in past]).softmax(-1)
            p_cache = torch.zeros_like(p)
            for j, score in zip(past, scores, strict=True):
                p_cache[int(split.ids[j])] += score
            p = (1 - c.share) * p + c.share * p_cache
        assert p.sum().item() == pytest.approx(1)
        total -= math.log(p[target].item())
    return total


@again
@given(tokens=st.integers(1, 30), segment=st.integers(1, 12), window=st.integers(1, 40))
def test_the_cache_matches_the_formula_for_every_segment_length(
    tiny, split, cpu, tokens: int, segment: int, window: int
) -> None:
    model, text, config = tiny(), split(tokens), CacheConfig(window=window, theta=0.7, share=0.3)
    found = evaluate_with_cache(model, text, cpu, config, batch=1, segment=segment)
    assert found.loss_nats == pytest.approx(by_loop(model, text, config), rel=1e-9)
    assert found.tokens == tokens


def test_every_lane_has_its_own_cache(tiny, split, cpu) -> None:
    model, text, config = tiny(), split(24), CacheConfig(window=9, theta=0.7, share=0.3)
    found = evaluate_with_cache(model, text, cpu, config, batch=2, segment=5)
    halves = (
        Split(text.ids[:12], 24, 0, text.start),
        Split(text.ids[12:], 24, 0, int(text.ids[11])),
    )
    expected = sum(by_loop(model, half, config) for half in halves)
    assert found.loss_nats == pytest.approx(expected, rel=1e-9)


def test_a_share_of_zero_is_the_model_alone(tiny, split, cpu) -> None:
    plain = evaluate_streams(tiny(), split(31), cpu, batch=3, segment=4)
    found = evaluate_with_cache(
        tiny(), split(31), cpu, CacheConfig(window=8, share=0.0), batch=3, segment=4
    )
    assert found.loss_nats == pytest.approx(plain.loss_nats, rel=1e-9)


def test_the_cache_helps_on_a_repetitive_text(tiny, cpu) -> None:
    text = Split(torch.tensor([1, 7, 3] * 30).numpy(), 90, 0, 10)
    plain = evaluate_streams(tiny(), text, cpu, batch=1)
    found = evaluate_with_cache(
        tiny(), text, cpu, CacheConfig(window=50, theta=1.0, share=0.3), batch=1
    )
    assert found.loss_nats < plain.loss_nats
    assert found.how == "1 carried stream, segment 90, cache 50, theta 1, lambda 0.3"


@pytest.mark.parametrize("name", CONFIGS)
def test_the_cache_works_with_every_family(name: str, split, cpu) -> None:
    config = CacheConfig(window=20, theta=0.5, share=0.2)
    found = evaluate_with_cache(family(name), split(40), cpu, config, batch=2, segment=7)
    assert math.isfinite(found.loss_nats)


@pytest.mark.parametrize(
    "wrong", [{"window": 0}, {"share": 1.0}, {"share": -0.1}, {"theta": -1.0}, {"theta": math.nan}]
)
def test_cache_settings_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UserError, match="cache"):
        CacheConfig(**wrong)
