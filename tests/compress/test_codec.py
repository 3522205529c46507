"""Frequencies and the range coder: exact sums, no token impossible, no bits wasted."""

import math
import sys
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from sparing.compress.codec import (
    FREQUENCY_BITS,
    _family,
    decode,
    encode,
    range_coder,
    take_fingerprint,
    to_probabilities,
)
from sparing.compress.lanes import IntArray, Reader
from sparing.errors import UserError

VOCAB = 17


def scripted(seed: int) -> Reader:
    """Logits that depend on everything read so far, as those of a model do."""
    read = list[IntArray]()

    def predict(ids_B: IntArray) -> NDArray[np.float64]:
        read.append(ids_B.copy())
        random = np.random.default_rng([seed, len(read), *np.concatenate(read)])
        return random.normal(scale=3, size=(len(ids_B), VOCAB))

    return predict


@pytest.mark.parametrize("tokens", [0, 1, 2, 7, 8, 9, 50])
@pytest.mark.parametrize("lanes", [1, 3, 8])
def test_tokens_come_back(tokens: int, lanes: int) -> None:
    ids = np.random.default_rng(tokens).integers(0, VOCAB, tokens)
    words = encode(scripted(1), ids, lanes, 5)
    assert np.array_equal(decode(scripted(1), words, tokens, lanes, 5), ids)


def test_every_token_is_coded_once_and_reported() -> None:
    ids, counts = np.arange(11) % VOCAB, list[int]()
    encode(scripted(2), ids, 4, 0, counts.append)
    assert counts == [4, 4, 3]


def test_probabilities_are_whole_multiples_that_add_up_to_one() -> None:
    logits = np.random.default_rng(0).normal(scale=20, size=(100, 256))
    probabilities = to_probabilities(logits)
    counts = probabilities * 2**FREQUENCY_BITS
    assert np.array_equal(counts, np.round(counts))
    assert counts.min() >= 1
    assert np.all(probabilities.sum(-1) == 1)
    exact = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    assert np.abs(probabilities - exact).max() < 256 / 2**FREQUENCY_BITS


def test_a_text_takes_hardly_more_bits_than_its_probabilities_say() -> None:
    random = np.random.default_rng(4)
    rows = random.normal(scale=3, size=(3000, VOCAB))
    probabilities = to_probabilities(rows)
    ids = np.array([random.choice(VOCAB, p=row) for row in probabilities])
    at = iter(rows)
    words = encode(lambda ids_B: next(at)[None], ids, 1, 0)
    ideal = -np.log2(np.exp(rows[range(3000), ids]) / np.exp(rows).sum(-1)).sum()
    assert ideal - 1 < 32 * len(words) < 1.0005 * ideal + 64


def test_a_token_that_is_certain_costs_next_to_nothing() -> None:
    logits = np.full((1, VOCAB), -1e4)
    logits[0, 3] = 0.0
    words = encode(lambda ids_B: logits, np.full(5000, 3), 1, 0)
    assert len(words) <= 2
    (other,) = {len(encode(lambda ids_B: logits, np.array([16]), 1, 0))}
    assert 32 * other <= FREQUENCY_BITS + 32


@pytest.mark.parametrize("scale", [0, 1, 1000])
@pytest.mark.parametrize("choose", [np.argmin, np.argmax], ids=["unlikely", "likely"])
def test_the_likeliest_and_the_unlikeliest_texts_come_back(
    scale: float, choose: Callable[..., IntArray]
) -> None:
    logits = np.random.default_rng(3).normal(scale=scale, size=(2000, VOCAB))
    ids = choose(logits, axis=-1)

    def reader() -> Reader:
        rows = iter(logits)
        return lambda ids_B: next(rows)[None]

    words = encode(reader(), ids, 1, 0)
    assert np.array_equal(decode(reader(), words, 2000, 1, 0), ids)


@pytest.mark.parametrize("lanes", [1, 3])
def test_a_vocabulary_of_one_token_is_coded(lanes: int) -> None:
    ids = np.zeros(100, np.int64)
    words = encode(lambda ids_B: np.zeros((lanes, 1)), ids, lanes, 0)
    assert len(words) <= 1
    assert np.array_equal(decode(lambda ids_B: np.zeros((lanes, 1)), words, 100, lanes, 0), ids)
    other = range_coder().RangeEncoder()
    # The second token is there for the coder alone.
    other.encode(np.array([1], np.int32), _family(), to_probabilities(np.zeros((1, 1))))
    with pytest.raises(ValueError, match="a token that the model does not have"):
        decode(lambda ids_B: np.zeros((1, 1)), other.get_compressed(), 1, 1, 0)


@pytest.mark.parametrize(("tokens", "scale", "most"), [(20_000, 3, 150), (1 << 28, 1e4, 1)])
def test_decoding_ends_soon_after_the_words(tokens: int, scale: float, most: int) -> None:
    """Also where every token is as likely as it can be, for even those take some bits."""
    logits, counts = np.random.default_rng(0).normal(scale=scale, size=(1, VOCAB)), list[int]()
    with pytest.raises(ValueError, match="its words end before its text"):
        decode(lambda ids_B: logits, np.zeros(0, np.uint32), tokens, 1, 0, counts.append)
    assert sum(counts) < most


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_predictions_that_are_not_finite_are_refused(broken: float) -> None:
    with pytest.raises(UserError, match="not finite"):
        to_probabilities(np.array([[0.0, broken]]))


def test_a_fingerprint_tells_the_slightest_difference_in_what_is_predicted() -> None:
    def shifted(amount: float) -> Reader:
        read = scripted(6)
        return lambda ids_B: read(ids_B) * (1 + amount)

    same, again, other = (take_fingerprint(shifted(by), VOCAB, 3) for by in (0, 0, 1e-6))
    assert same == again != other
    assert len(same) == 16


def test_a_missing_coder_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "constriction", None)
    with pytest.raises(UserError, match=r"pip install 'sparing\[compress\]'"):
        range_coder()
