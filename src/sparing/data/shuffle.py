"""The order in which an epoch reads a text whose chunks are shuffled."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SHUFFLE_SEED = 0x5F0F
"""Separates these random numbers from others drawn with the same seed."""


@dataclass(frozen=True, slots=True)
class ShuffledOrder:
    """Chunks one after the other, as lanes read them: positions of this order and of the text."""

    begins: npt.NDArray[np.int64]
    """Position in the order at which each chunk begins, ascending."""
    places: npt.NDArray[np.int64]
    """Position in the text at which each chunk begins."""

    def to_text(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Positions of the text, given positions of the order."""
        chunk = np.searchsorted(self.begins, positions, side="right") - 1
        found: npt.NDArray[np.int64] = self.places[chunk] + positions - self.begins[chunk]
        return found


def shuffle_chunks(
    edges: npt.NDArray[np.int64], chunk: int, unit: int, seed: tuple[int, ...]
) -> ShuffledOrder:
    """Cut lanes with these `edges` into chunks, and the text into chunks of the same lengths.

    All chunks have `chunk` tokens but for the first of each lane, a random number of `unit`s, and
    the last. Which part of the text fills which chunk is drawn too, so every token is read once.
    """
    random = np.random.default_rng((SHUFFLE_SEED, *seed))
    firsts = unit * random.integers(1, chunk // unit + 1, edges.size - 1)
    begins = np.concatenate(
        [
            np.concatenate([[begin], np.arange(begin + first, end, chunk)])
            for begin, end, first in zip(edges[:-1], edges[1:], firsts, strict=True)
        ]
    ).astype(np.int64)
    lengths = np.diff(begins, append=edges[-1])
    order = random.permutation(begins.size)
    places = np.empty_like(begins)
    places[order] = np.cumsum(lengths[order]) - lengths[order]
    return ShuffledOrder(begins, places)
