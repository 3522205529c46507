"""Vocabularies: text as numbers and back. They are learnt from the training text alone."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

from sparing.data.pieces import Pieces
from sparing.data.text import chunks, decoded, unsigned
from sparing.errors import UserError, unknown

Kind = Literal["bytes", "symbols", "characters", "words", "pieces", "par-pieces"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Order = Literal["frequency", "appearance"]
Ids = Sequence[int] | npt.NDArray[Any]
EOS, UNK = b"<eos>", b"<unk>"


class Vocab(Protocol):
    """What the rest of the house may rely on in a vocabulary."""

    @property
    def kind(self) -> str:
        """Its name in `data.vocab`."""
        ...

    @property
    def size(self) -> int:
        """How many ids there are."""
        ...

    @property
    def start(self) -> int:
        """The id fed before the first token of a text: the end of the line before it."""
        ...

    @property
    def lossless(self) -> bool:
        """Whether `decode(encode(text)) == text` for every text that `encode` takes."""
        ...

    def encode(self, text: bytes) -> npt.NDArray[Any]:
        """The ids of `text`, in the smallest unsigned type that holds them."""
        ...

    def decode(self, ids: Ids) -> bytes:
        """The text that `ids` stand for."""
        ...

    def token_bytes(self, id: int) -> bytes:
        """The bytes one id adds to a text; part of a character, perhaps."""
        ...

    def to_json(self) -> dict[str, Any]:
        """What `vocab_from_json` needs to make it again."""
        ...


class Bytes:
    """Every byte is its own id: takes any file, never meets an unknown symbol."""

    kind = "bytes"
    size = 256
    start = 10
    lossless = True

    def encode(self, text: bytes) -> npt.NDArray[Any]:
        """See `Vocab`."""
        return np.frombuffer(text, np.uint8)

    def decode(self, ids: Ids) -> bytes:
        """See `Vocab`."""
        return np.asarray(ids, np.uint8).tobytes()

    def token_bytes(self, id: int) -> bytes:
        """See `Vocab`."""
        return bytes([id])

    def to_json(self) -> dict[str, Any]:
        """See `Vocab`."""
        return {"kind": self.kind}


class Symbols:
    """The bytes seen in training, in the seeds' order; the newline plays their `<eos>`."""

    kind = "symbols"
    lossless = True

    def __init__(self, symbols: bytes) -> None:
        self.symbols = symbols
        self.size = len(symbols)
        self.start = _start(symbols.decode("latin-1"))
        table = bytearray(256)
        for id, symbol in enumerate(symbols):
            table[symbol] = id
        self._table = bytes(table)

    def encode(self, text: bytes) -> npt.NDArray[Any]:
        """See `Vocab`."""
        unseen = text.translate(None, delete=self.symbols)
        if unseen:
            raise _unseen(f"byte {unseen[:1]!r} (0x{unseen[0]:02x})")
        return np.frombuffer(text.translate(self._table), np.uint8)

    def decode(self, ids: Ids) -> bytes:
        """See `Vocab`."""
        return np.frombuffer(self.symbols, np.uint8)[np.asarray(ids, np.int64)].tobytes()

    def token_bytes(self, id: int) -> bytes:
        """See `Vocab`."""
        return self.symbols[id : id + 1]

    def to_json(self) -> dict[str, Any]:
        """See `Vocab`."""
        return {"kind": self.kind, "symbols": list(self.symbols)}


class Characters:
    """The Unicode code points seen in training, sorted."""

    kind = "characters"
    lossless = True

    def __init__(self, characters: str) -> None:
        self.characters = characters
        self.size = len(characters)
        self.start = _start(characters)
        self._points = _code_points(characters)
        self._table = np.full(0x110000, self.size, np.uint32)
        self._table[self._points] = np.arange(self.size, dtype=np.uint32)

    def encode(self, text: bytes) -> npt.NDArray[Any]:
        """See `Vocab`."""
        runs = [self._encode(_code_points(chunk)) for chunk in decoded(text)]
        return np.concatenate([np.empty(0, unsigned(self.size)), *runs])

    def _encode(self, points: npt.NDArray[np.uint32]) -> npt.NDArray[Any]:
        ids = self._table[points]
        unseen = points[ids == self.size]
        if unseen.size:
            raise _unseen(f"character {chr(unseen[0])!r} (U+{unseen[0]:04X})")
        return ids.astype(unsigned(self.size))

    def decode(self, ids: Ids) -> bytes:
        """See `Vocab`."""
        points = self._points[np.asarray(ids, np.int64)]
        return points.tobytes().decode("utf-32-le").encode("utf-8")

    def token_bytes(self, id: int) -> bytes:
        """See `Vocab`."""
        return self.characters[id].encode("utf-8")

    def to_json(self) -> dict[str, Any]:
        """See `Vocab`."""
        return {"kind": self.kind, "characters": self.characters}


class Words:
    """Words between (ASCII) whitespace, `<eos>` for each line end, `<unk>` for unseen words.

    `<eos>` comes first, then the most frequent words; ties in order of appearance.
    """

    kind = "words"
    start = 0
    lossless = False

    def __init__(self, words: Sequence[bytes]) -> None:
        self.words = tuple(words)
        self.size = len(self.words)
        self._ids = {word: id for id, word in enumerate(self.words)}

    def encode(self, text: bytes) -> npt.NDArray[Any]:
        """See `Vocab`."""
        unk = self._ids[UNK]
        ids = (self._ids.get(word, unk) for word in _words(text))
        return np.fromiter(ids, unsigned(self.size))

    def decode(self, ids: Ids) -> bytes:
        """The words joined by single spaces; each `<eos>` ends a line."""
        text = b" ".join(b"\n" if id == self.start else self.words[id] for id in ids)
        return text.replace(b" \n", b"\n").replace(b"\n ", b"\n")

    def token_bytes(self, id: int) -> bytes:
        """See `Vocab`; a word brings the space after it along."""
        return b"\n" if id == self.start else self.words[id] + b" "

    def to_json(self) -> dict[str, Any]:
        """See `Vocab`."""
        return {"kind": self.kind, "words": [word.decode("utf-8") for word in self.words]}


def learn(
    kind: str, train_text: bytes, size: int | None = None, *, symbol_order: Order = "frequency"
) -> Vocab:
    """Make the vocabulary of `kind` that a training text calls for."""
    if kind not in KINDS:
        raise unknown("vocabulary", kind, KINDS)
    if not train_text:
        raise UserError("there is no training text to learn a vocabulary from")
    if kind == "bytes":
        return Bytes()
    if kind == "symbols":
        return Symbols(_seen_bytes(train_text, symbol_order))
    if kind == "characters":
        return Characters("".join(sorted(set().union(*map(set, decoded(train_text))))))
    if kind == "words":
        return Words(_frequent_words(train_text))
    return Pieces.learn(train_text, size, style="par" if kind == "par-pieces" else "lossless")


def vocab_from_json(data: Mapping[str, Any]) -> Vocab:
    """The vocabulary that `to_json` described."""
    try:
        kind = data["kind"]
        if kind == "bytes":
            return Bytes()
        if kind == "symbols":
            return Symbols(bytes(list(data["symbols"])))
        if kind == "characters":
            return Characters(data["characters"])
        if kind == "words":
            words = [word.encode("utf-8") for word in data["words"]]
            words.index(UNK)
            return Words(words)
        if kind in KINDS:
            return Pieces.from_json(data)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as problem:
        raise UserError(f"the stored vocabulary is damaged: {problem!r}") from None
    raise unknown("vocabulary", str(kind), KINDS)


def _start(symbols: str) -> int:
    """A newline where the vocabulary has one, else a space, else whatever comes first."""
    return next((symbols.index(symbol) for symbol in "\n " if symbol in symbols), 0)


def _code_points(text: str) -> npt.NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le"), np.dtype("<u4"))


def _unseen(symbol: str) -> UserError:
    return UserError(
        f"{symbol} was never seen in training; remove it, or train with data.vocab=bytes"
    )


def _seen_bytes(text: bytes, order: Order) -> bytes:
    first = {symbol: text.find(symbol) for symbol in range(256)}
    seen = sorted((symbol for symbol in first if first[symbol] >= 0), key=first.__getitem__)
    if order == "frequency":
        counts = np.zeros(256, np.int64)
        for chunk in chunks(text):
            counts += np.bincount(np.frombuffer(chunk, np.uint8), minlength=256)
        seen.sort(key=lambda symbol: -counts[symbol])
    return bytes(seen)


def _words(text: bytes) -> Iterator[bytes]:
    for chunk in decoded(text):
        *lines, rest = chunk.encode("utf-8").split(b"\n")
        for line in lines:
            yield from line.split()
            yield EOS
        yield from rest.split()


def _frequent_words(text: bytes) -> list[bytes]:
    counts = Counter(_words(text))
    counts.pop(EOS, None)
    words = [EOS, *(word for word, _ in counts.most_common())]
    return words if UNK in counts else [*words, UNK]
