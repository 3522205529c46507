"""Scores of texts do not depend on the batch or the segment."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparing.data.vocab import ByteVocab
from sparing.errors import UserError
from sparing.evaluation.score import TextScore, rank_texts, score_texts, to_text_score

TEXTS = [b"a", b"the longest of all these texts", b"one more", b"exactly8", b"a", b"caf\xc3\xa9"]


@settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    texts=st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=7),
    segment=st.integers(1, 24),
    batch=st.integers(1, 8),
)
def test_a_score_does_not_depend_on_the_batch(tiny, cpu, texts, segment: int, batch: int) -> None:
    # The memory is shorter than the texts, so what is kept depends on the segments' lengths.
    model, vocab = tiny(vocab_size=256, memory=6), ByteVocab()
    together = score_texts(model, vocab, texts, cpu, segment=segment, batch=batch)
    for text, found in zip(texts, together, strict=True):
        (alone,) = score_texts(model, vocab, [text], cpu, segment=segment, batch=1)
        assert found.text == alone.text == text
        np.testing.assert_allclose(
            [nats for _, nats in found.per_token], [nats for _, nats in alone.per_token], rtol=1e-9
        )


def test_the_memory_kept_does_not_depend_on_other_texts(tiny, cpu) -> None:
    # Alone, the second segment of the first text could be one token long and keep nine.
    model, texts = tiny(vocab_size=256, memory=10), [b"nine long", b"and sixteen long"]
    together = score_texts(model, ByteVocab(), texts, cpu, segment=8, batch=2)
    (alone,) = score_texts(model, ByteVocab(), texts[:1], cpu, segment=8)
    assert together[0].loss_nats == pytest.approx(alone.loss_nats, rel=1e-9)


@pytest.mark.parametrize("segment", [1, 5, 8, 64])
def test_a_score_is_the_loss_of_one_forward_pass_from_the_start_token(
    tiny, cpu, segment: int
) -> None:
    model, vocab = tiny(vocab_size=256, memory=64), ByteVocab()
    for text, found in zip(
        TEXTS, score_texts(model, vocab, TEXTS, cpu, segment=segment, batch=4), strict=True
    ):
        ids = torch.tensor([vocab.start, *text])[None]
        with torch.no_grad():
            out = model.eval()(ids[:, :-1], model.initial_state(1))
            expected = model.head.nats(out.hidden_BTD, ids[:, 1:])[0]
        np.testing.assert_allclose([nats for _, nats in found.per_token], expected, rtol=1e-9)
        assert found.loss_nats == pytest.approx(expected.sum().item(), rel=1e-9)
        assert b"".join(token for token, _ in found.per_token) == text
        assert found.tokens == found.size_bytes == len(text)


def made(text: bytes, loss_nats: float) -> TextScore:
    return TextScore(
        text=text, loss_nats=loss_nats, tokens=1, size_bytes=len(text), per_token=[(text, 1.5)]
    )


def test_the_most_probable_text_ranks_first() -> None:
    scores = [made(b"aaaa", 3.0), made(b"b", 2.0), made(b"cccccccc", 4.0)]
    assert [item.text for item in rank_texts(scores)] == [b"b", b"aaaa", b"cccccccc"]
    assert [item.text for item in rank_texts(scores, per_byte=True)] == [b"cccccccc", b"aaaa", b"b"]


def test_a_score_of_any_bytes_can_be_written_as_json() -> None:
    found = made(b"\xff", math.log(2))
    assert json.loads(json.dumps(found.to_json(per_token=True))) == {
        "text": "\ufffd",
        "log_probability": pytest.approx(-math.log(2)),
        "bits_per_byte": pytest.approx(1.0),
        "tokens": 1,
        "bytes": 1,
        "per_token": [{"token": "\ufffd", "nats": 1.5}],
    }
    assert "per_token" not in found.to_json()


@pytest.mark.parametrize("nats", [math.nan, math.inf])
def test_a_figure_that_is_not_finite_is_null(nats: float) -> None:
    score = to_text_score(ByteVocab(), b"ab", np.array([97, 98]), np.array([1.0, nats]))
    found = score.to_json(per_token=True)
    assert json.loads(json.dumps(found, allow_nan=False)) == {
        "text": "ab",
        "log_probability": None,
        "bits_per_byte": None,
        "tokens": 2,
        "bytes": 2,
        "per_token": [{"token": "a", "nats": 1.0}, {"token": "b", "nats": None}],
    }


def test_an_empty_text_is_refused_by_number(tiny, cpu) -> None:
    with pytest.raises(UserError, match="text 2 is empty"):
        score_texts(tiny(vocab_size=256), ByteVocab(), [b"a", b""], cpu)
    with pytest.raises(UserError, match="segment 0"):
        score_texts(tiny(vocab_size=256), ByteVocab(), [b"a"], cpu, segment=0)


def test_an_empty_list_of_texts_has_no_scores(tiny, cpu) -> None:
    assert score_texts(tiny(vocab_size=256), ByteVocab(), [], cpu) == []
