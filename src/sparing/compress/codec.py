"""Tokens to coded words and back: integer frequencies, and constriction's range coder.

Axes: B lanes, A lanes that have a next token, V vocabulary.
"""

import hashlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from sparing.compress.lanes import IntArray, Reader
from sparing.errors import UserError, bad_predictions

FREQUENCY_BITS = 24
"""Frequencies of a distribution add up to two to this power: as exact as the coder is."""
UNIT = 2.0**-FREQUENCY_BITS
"""The smallest probability."""
FINGERPRINT_STEPS = 32
SPARE_BITS = 128
"""More than the coder saves at the end of a text, where it writes no more words than it must."""

Words = npt.NDArray[np.uint32]
Probabilities = npt.NDArray[np.float64]
Progress = Callable[[int], object]
"""Is told the number of tokens just coded."""
Coder = Callable[[IntArray, Probabilities], npt.NDArray[Any]]
"""Takes the positions (A,) of the next tokens in the text and their probabilities (A, V); codes
and returns these tokens."""


def encode(
    read: Reader, ids: IntArray, lanes: int, start: int, progress: Progress = lambda count: None
) -> Words:
    """Return what a text of tokens `ids` is coded to, cut into lanes of almost equal length."""
    encoder, family = range_coder().RangeEncoder(), _family()

    def code(places_A: IntArray, probabilities_AV: Probabilities) -> IntArray:
        encoder.encode(ids[places_A].astype(np.int32), family, probabilities_AV)
        return ids[places_A]

    code_lanes(read, len(ids), lanes, start, code, progress)
    words: Words = encoder.get_compressed()
    return words


def decode(  # noqa: PLR0913  as `encode`, and the number of tokens
    read: Reader,
    words: Words,
    tokens: int,
    lanes: int,
    start: int,
    progress: Progress = lambda count: None,
) -> IntArray:
    """Return the tokens that `encode` was given; others, if anything differs."""
    decoder, family = range_coder().RangeDecoder(words), _family()
    ids, left = np.zeros(tokens, np.int64), BitsLeft(8 * words.nbytes + SPARE_BITS, tokens)

    def code(places_A: IntArray, probabilities_AV: Probabilities) -> IntArray:
        found_A = decoder.decode(family, probabilities_AV)
        left.spend(probabilities_AV, found_A)
        ids[places_A] = found_A
        return ids[places_A]

    code_lanes(read, tokens, lanes, start, code, progress)
    return ids


class BitsLeft:
    """The bits that a text can have been coded to.

    Past the end of its words the decoder would go on with zeros, for as many tokens as are claimed.
    """

    def __init__(self, bits: float, tokens: int) -> None:
        self._bits, self._tokens = float(bits), tokens

    def spend(self, probabilities_AV: Probabilities, ids_A: npt.NDArray[Any]) -> None:
        """Account for decoded tokens; raise a ValueError if the rest of them cannot be there."""
        chosen_A1 = np.take_along_axis(probabilities_AV, ids_A[:, None], -1)
        # No other token is impossible, and the coder rounds small probabilities up once more.
        most = 1 - (probabilities_AV.shape[-1] - 1) * UNIT
        self._bits += float(np.log2(np.minimum(chosen_A1 + UNIT, most)).sum())
        self._tokens -= len(ids_A)
        if self._bits < -math.log2(most) * self._tokens:
            raise ValueError("its words end before its text")


def code_lanes(  # noqa: PLR0913  as `encode`
    read: Reader, tokens: int, lanes: int, start: int, code: Coder, progress: Progress
) -> None:
    """Predict and code the tokens of all lanes step by step: the same for both directions."""
    edges = lane_edges(tokens, lanes)
    begins_B, ends_B = edges[:-1], edges[1:]
    ids_B = np.full(lanes, start, np.int64)
    for step in range(int((ends_B - begins_B).max())):
        logits_BV = read(ids_B)
        probabilities_BV = to_probabilities(logits_BV)
        # In the last step some lanes have ended; they read a token that nothing follows.
        going_B = begins_B + step < ends_B
        ids_B = np.full(lanes, start, np.int64)
        ids_B[going_B] = code((begins_B + step)[going_B], probabilities_BV[going_B])
        if ids_B.max() >= logits_BV.shape[-1]:
            raise ValueError("it holds a token that the model does not have")
        progress(int(going_B.sum()))


def lane_edges(tokens: int, lanes: int) -> IntArray:
    """Return where each lane of a text begins, and where the last one ends."""
    return np.arange(lanes + 1, dtype=np.int64) * tokens // lanes


def to_probabilities(logits_BV: npt.NDArray[np.float64]) -> Probabilities:
    """Return probabilities that are whole multiples of 2^-24, none of them zero.

    So they are exact in float64, and so is their sum, which the coder relies on. It does not take
    a single token, so that gets a second one beside it, which never occurs.
    """
    if not np.isfinite(logits_BV).all():
        raise bad_predictions()
    if logits_BV.shape[-1] == 1:
        logits_BV = np.pad(logits_BV, ((0, 0), (0, 1)), constant_values=-np.inf)
    exponential_BV = np.exp(logits_BV - logits_BV.max(-1, keepdims=True))
    share_BV = exponential_BV / exponential_BV.sum(-1, keepdims=True)
    total, size = 1 << FREQUENCY_BITS, logits_BV.shape[-1]
    counts_BV = np.floor(share_BV * (total - size)) + 1
    # What rounding down has left over goes to the likeliest token, where it costs least.
    likeliest_B1 = counts_BV.argmax(-1)[:, None]
    rest_B1 = total - counts_BV.sum(-1, keepdims=True)
    largest_B1 = np.take_along_axis(counts_BV, likeliest_B1, -1)
    np.put_along_axis(counts_BV, likeliest_B1, largest_B1 + rest_B1, -1)
    probabilities_BV: Probabilities = counts_BV / total
    return probabilities_BV


def take_fingerprint(read: Reader, vocab_size: int, lanes: int) -> bytes:
    """Return a hash of what a model predicts, and the coder writes, for a fixed text.

    A machine with another processor, other libraries or another number of threads may compute
    logits that differ in their last bits, and then it could not decode.
    """
    digest, encoder, family = hashlib.sha256(), range_coder().RangeEncoder(), _family()
    ids = (np.arange(FINGERPRINT_STEPS * lanes, dtype=np.int64) * 7919 // 13) % vocab_size

    def code(places_A: IntArray, probabilities_AV: Probabilities) -> IntArray:
        digest.update(probabilities_AV.tobytes())
        encoder.encode(ids[places_A].astype(np.int32), family, probabilities_AV)
        return ids[places_A]

    code_lanes(read, len(ids), lanes, 0, code, lambda count: None)
    digest.update(encoder.get_compressed().tobytes())
    return digest.digest()[:16]


def range_coder() -> Any:
    """The module of constriction that codes with a range coder."""
    return _library().stream.queue


def _family() -> Any:
    return _library().stream.model.Categorical(perfect=False)


def _library() -> Any:
    try:
        import constriction
    except ImportError:
        raise UserError("compression needs constriction: pip install 'sparing[compress]'") from None
    return constriction
