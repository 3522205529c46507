"""The vocabulary of whole words."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from sparing.data.text import Text, decode_chunks, smallest_dtype, split_chunks
from sparing.errors import UserError

EOS, UNK = b"<eos>", b"<unk>"
TOKEN = re.compile(rb"\n|\S+")
MAX_WORDS = 1 << 21
"""Different words of a text, which take up to half a gigabyte of memory to count."""


class WordVocab:
    """Words between (ASCII) whitespace, `<eos>` for each line end, `<unk>` for unseen words.

    `<eos>` comes first, then words by falling frequency; ties in order of appearance.
    """

    kind = "words"
    start = 0
    lossless = False

    def __init__(self, words: Sequence[bytes]) -> None:
        self.words = tuple(words)
        self.size = len(self.words)
        self._ids = {word: id for id, word in enumerate(self.words)}

    @classmethod
    def train(cls, train_text: Text) -> Self:
        """Take all words of a text."""
        counts: Counter[bytes] = Counter()
        for chunk in split_chunks(train_text):
            counts.update(_words(chunk))
            if len(counts) > MAX_WORDS:
                raise UserError(
                    f"the training text has more than {MAX_WORDS:,} different words; "
                    "set data.vocab=pieces or data.vocab=bytes"
                )
        counts.pop(EOS, None)
        words = [EOS, *(word for word, _ in counts.most_common())]
        return cls(words if UNK in counts else [*words, UNK])

    def encode(self, text: bytes) -> npt.NDArray[Any]:
        """See `Vocab`."""
        unk = self._ids[UNK]
        ids = (self._ids.get(word, unk) for word in _words(text))
        return np.fromiter(ids, smallest_dtype(self.size))

    def decode(self, ids: Sequence[int] | npt.NDArray[Any]) -> bytes:
        """Join the words by single spaces; each `<eos>` ends a line."""
        text = b" ".join(b"\n" if id == self.start else self.words[id] for id in ids)
        return text.replace(b" \n", b"\n").replace(b"\n ", b"\n")

    def token_bytes(self, id: int) -> bytes:
        """See `Vocab`; a word includes the space after it."""
        return b"\n" if id == self.start else self.words[id] + b" "

    def ends(self, text: bytes) -> npt.NDArray[Any]:
        """See `Vocab`."""
        return np.fromiter((found.end() for found in TOKEN.finditer(text)), np.int64)

    def to_json(self) -> dict[str, Any]:
        """See `Vocab`."""
        return {"kind": self.kind, "words": [word.decode("utf-8") for word in self.words]}


def _words(text: bytes) -> Iterator[bytes]:
    for chunk in decode_chunks(text):
        *lines, rest = chunk.encode("utf-8").split(b"\n")
        for line in lines:
            yield from line.split()
            yield EOS
        yield from rest.split()
