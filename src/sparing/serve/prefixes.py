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

from sparing.models.api import State, pad_length, size_bytes
from sparing.serve.requests import Ids

MARKS = 65536
"""Ends of chunks that are remembered without a state, to notice what prompts have in common."""


class Prefix(NamedTuple):
    """A beginning that was read before."""

    length: int
    state: State
    hidden_D: Tensor
    """The model's last layer at the end of it."""


class _Kept(NamedTuple):
    """A state without the empty positions of its memories."""

    length: int
    state: State
    sizes: dict[str, int]
    hidden_D: Tensor

    @property
    def nbytes(self) -> int:
        return size_bytes(self.state) + self.hidden_D.nbytes


class PrefixCache:
    """States by the tokens they have read, least recently used first."""

    def __init__(self, limit_bytes: int, chunk: int) -> None:
        self.limit_bytes, self.chunk, self.used_bytes = limit_bytes, chunk, 0
        self._kept = OrderedDict[bytes, _Kept]()
        self._marks = OrderedDict[bytes, None]()

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, ids: Ids) -> Prefix | None:
        """Return the longest beginning of `ids` whose state is kept."""
        for key, _ in reversed(list(self._ends(ids))):
            if (kept := self._kept.get(key)) is not None:
                self._kept.move_to_end(key)
                state = {
                    name: pad_length(tensor, kept.sizes.get(name, 0))
                    for name, tensor in kept.state.items()
                }
                return Prefix(kept.length, state, kept.hidden_D)
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

    def add(self, ids: Ids, state: State, hidden_D: Tensor) -> None:
        """Keep the state after `ids`; the least recently used ones make room for it."""
        *_, (key, length) = self._ends(ids)
        if key in self._kept or not self.limit_bytes:
            return
        compact = {name: _without_empty(tensor) for name, tensor in state.items()}
        sizes = {name: tensor.size(1) for name, tensor in state.items() if tensor.ndim > 2}
        kept = _Kept(length, compact, sizes, hidden_D.clone())
        if kept.nbytes > self.limit_bytes:
            return
        self._kept[key] = kept
        self.used_bytes += kept.nbytes
        while self.used_bytes > self.limit_bytes:
            _, oldest = self._kept.popitem(last=False)
            self.used_bytes -= oldest.nbytes

    def _ends(self, ids: Ids) -> Iterator[tuple[bytes, int]]:
        """Yield a key for every whole chunk that `ids` begins with, and for all of it."""
        digest = blake2b(digest_size=16)
        for begin in range(0, len(ids), self.chunk):
            piece = ids[begin : begin + self.chunk]
            digest.update(piece.tobytes())
            yield digest.digest(), begin + len(piece)


def _without_empty(tensor: Tensor) -> Tensor:
    """Copy what follows the leading zeros of a memory: positions that were never written."""
    if tensor.ndim <= 2:
        return tensor.clone()
    used = tensor[0].flatten(1).ne(0).any(1).nonzero()
    first = int(used[0]) if len(used) else tensor.size(1)
    return tensor[:, first:].clone()
