"""States of prompts that may come again, within a bound on memory.

A state is kept at the end of every prompt, and where a prompt parts from an earlier one: at the
last chunk that both begin with. So texts read with the help of a state are read in the same chunks
as without it, and give bitwise the same answer.
"""

from collections import OrderedDict
from collections.abc import Iterator
from hashlib import blake2b
from typing import NamedTuple

from torch import Tensor

from sparing.serve.lanes import LaneState
from sparing.serve.requests import Ids

MARKS = 65536
"""Ends of chunks that are remembered without a state, to notice what prompts have in common."""


class Prefix(NamedTuple):
    """A beginning that was read before."""

    kept: LaneState
    hidden_D: Tensor
    """The model's last layer at the end of it."""

    @property
    def nbytes(self) -> int:
        """Its size."""
        return self.kept.nbytes + self.hidden_D.nbytes


class PrefixCache:
    """States by the tokens they have read, least recently used first."""

    def __init__(self, limit_bytes: int, chunk: int) -> None:
        self.limit_bytes, self.chunk, self.used_bytes = limit_bytes, chunk, 0
        self._kept = OrderedDict[bytes, Prefix]()
        self._marks = OrderedDict[bytes, None]()

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, ids: Ids) -> Prefix | None:
        """Return the longest beginning of `ids` whose state is kept."""
        for key, _ in reversed(list(self._ends(ids))):
            if (prefix := self._kept.get(key)) is not None:
                self._kept.move_to_end(key)
                return prefix
        return None

    def shared(self, ids: Ids) -> int:
        """Return how many tokens `ids` has in common with earlier prompts, in whole chunks.

        From now on `ids` is such a prompt.
        """
        longest = 0
        for key, length in self._ends(ids):
            if key in self._marks and length % self.chunk == 0:
                longest = length
            self._marks[key] = None
            self._marks.move_to_end(key)
        while len(self._marks) > MARKS:
            self._marks.popitem(last=False)
        return longest

    def lacks(self, ids: Ids) -> bool:
        """Whether nothing is kept for exactly these tokens."""
        *_, (key, _) = self._ends(ids)
        return bool(self.limit_bytes) and key not in self._kept

    def add(self, ids: Ids, prefix: Prefix) -> None:
        """Keep the state after `ids`; the least recently used ones make room for it."""
        *_, (key, _) = self._ends(ids)
        if key in self._kept or prefix.nbytes > self.limit_bytes:
            return
        self._kept[key] = prefix
        self.used_bytes += prefix.nbytes
        while self.used_bytes > self.limit_bytes:
            _, oldest = self._kept.popitem(last=False)
            self.used_bytes -= oldest.nbytes

    def clear(self) -> None:
        """Keep no state; what prompts have in common is still known."""
        self._kept.clear()
        self.used_bytes = 0

    def _ends(self, ids: Ids) -> Iterator[tuple[bytes, int]]:
        """Yield a key for every whole chunk that `ids` begins with, and for all of it."""
        digest = blake2b(digest_size=16)
        for begin in range(0, len(ids), self.chunk):
            piece = ids[begin : begin + self.chunk]
            digest.update(piece.tobytes())
            yield digest.digest(), begin + len(piece)
