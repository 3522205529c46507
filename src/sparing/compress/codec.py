"""Tokens to coded words and back: integer frequencies, and constriction's range coder.

Axes: B lanes, A lanes that have a next token, V vocabulary.
"""

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from sparing.compress.lanes import IntArray, Reader
from sparing.errors import UserError

FREQUENCY_BITS = 24
"""Frequencies of a distribution add up to two to this power: as exact as the coder is."""
FINGERPRINT_STEPS = 32

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
    ids = np.zeros(tokens, np.int64)

    def code(places_A: IntArray, probabilities_AV: Probabilities) -> IntArray:
        ids[places_A] = decoder.decode(family, probabilities_AV)
        return ids[places_A]

    code_lanes(read, tokens, lanes, start, code, progress)
    return ids


def code_lanes(  # noqa: PLR0913  as `encode`
    read: Reader, tokens: int, lanes: int, start: int, code: Coder, progress: Progress
) -> None:
    """Predict and code the tokens of all lanes step by step: the same for both directions."""
    edges = lane_edges(tokens, lanes)
    begins_B, ends_B = edges[:-1], edges[1:]
    ids_B = np.full(lanes, start, np.int64)
    for step in range(int((ends_B - begins_B).max())):
        probabilities_BV = to_probabilities(read(ids_B))
        # In the last step some lanes have ended; they read a token that nothing follows.
        going_B = begins_B + step < ends_B
        ids_B = np.full(lanes, start, np.int64)
        ids_B[going_B] = code((begins_B + step)[going_B], probabilities_BV[going_B])
        progress(int(going_B.sum()))


def lane_edges(tokens: int, lanes: int) -> IntArray:
    """Return where each lane of a text begins, and where the last one ends."""
    return np.arange(lanes + 1, dtype=np.int64) * tokens // lanes


def to_probabilities(logits_BV: npt.NDArray[np.float64]) -> Probabilities:
    """Return probabilities that are whole multiples of 2^-24, none of them zero.

    So they are exact in float64, and so is their sum, which the coder relies on.
    """
    if not np.isfinite(logits_BV).all():
        raise UserError("the model predicts values that are not finite; use another checkpoint")
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
