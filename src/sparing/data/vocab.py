"""Vocabularies: text to token ids and back. They are made from the training text alone."""

from collections.abc import Sequence
from typing import Any, Literal, Protocol, Required, TypedDict, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from sparing.data.pieces import PieceVocab
from sparing.data.text import Text, decode_chunks, smallest_dtype, split_chunks
from sparing.data.words import EOS, UNK, WordVocab
from sparing.documents import Count, MisfitError, conform
from sparing.errors import UserError, unknown_name

VocabKind = Literal["bytes", "symbols", "characters", "words", "pieces", "par-pieces"]
VOCAB_KINDS: tuple[VocabKind, ...] = get_args(VocabKind)
Order = Literal["frequency", "appearance"]
Token = TypeVar("Token", int, str)
Ids = Sequence[int] | npt.NDArray[Any]


class Vocab(Protocol):
    """Interface of every vocabulary."""

    @property
    def kind(self) -> str:
        """Its name in `data.vocab`."""
        ...

    @property
    def size(self) -> int:
        """Number of ids."""
        ...

    @property
    def start(self) -> int:
        """The id fed before the first token of a text: a line end, if there is one."""
        ...

    @property
    def lossless(self) -> bool:
        """Whether `decode(encode(text)) == text` for every text that `encode` accepts."""
        ...

    def encode(self, text: bytes) -> npt.NDArray[Any]:
        """Return the ids of `text`, in the smallest unsigned type that holds them."""
        ...

    def decode(self, ids: Ids) -> bytes:
        """Return the text of `ids`."""
        ...

    def token_bytes(self, id: int) -> bytes:
        """Return the bytes that one id adds to a text, possibly part of a character."""
        ...

    def ends(self, text: bytes) -> npt.NDArray[Any] | None:
        """Return where each token of `text` ends in it; None if `decode` restores the text."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Return the data from which `vocab_from_json` restores it."""
        ...


ONE_BYTE = ("bytes", "symbols")
"""Kinds of vocabulary in which a token is a byte."""


class _LosslessVocab:
    lossless = True

    def ends(self, text: bytes) -> None:
        """See `Vocab`."""


class ByteVocab(_LosslessVocab):
    """Every byte is its own id. Accepts any file; there are no unknown symbols."""

    kind = "bytes"
    size = 256
    start = 10

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


class SymbolVocab(_LosslessVocab):
    """The bytes that occur in the training text; the newline serves as `<eos>`."""

    kind = "symbols"

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


class CharacterVocab(_LosslessVocab):
    """The Unicode code points that occur in the training text, sorted."""

    kind = "characters"

    def __init__(self, characters: str) -> None:
        self.characters = characters
        self.size = len(characters)
        self.start = _start(characters)
        self._points = _code_points(characters)
        self._table = np.full(0x110000, self.size, np.uint32)
        self._table[self._points] = np.arange(self.size, dtype=np.uint32)

    def encode(self, text: bytes) -> npt.NDArray[Any]:
        """See `Vocab`."""
        runs = [self._encode(_code_points(chunk)) for chunk in decode_chunks(text)]
        return np.concatenate([np.empty(0, smallest_dtype(self.size)), *runs])

    def _encode(self, points: npt.NDArray[np.uint32]) -> npt.NDArray[Any]:
        ids = self._table[points]
        unseen = points[ids == self.size]
        if unseen.size:
            raise _unseen(f"character {chr(unseen[0])!r} (U+{unseen[0]:04X})")
        return ids.astype(smallest_dtype(self.size))

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


def train_vocab(
    kind: str, train_text: Text, size: int | None = None, *, symbol_order: Order = "frequency"
) -> Vocab:
    """Make a vocabulary of `kind` from a training text."""
    if kind not in VOCAB_KINDS:
        raise unknown_name("vocabulary", kind, VOCAB_KINDS)
    if not len(train_text):
        raise UserError("there is no training text to make a vocabulary from")
    if kind == "bytes":
        return ByteVocab()
    if kind == "symbols":
        return SymbolVocab(_seen_bytes(train_text, symbol_order))
    if kind == "characters":
        return CharacterVocab("".join(sorted(_seen_characters(train_text))))
    if kind == "words":
        return WordVocab.train(train_text)
    return PieceVocab.train(train_text, size, style="par" if kind == "par-pieces" else "lossless")


class StoredVocab(TypedDict, total=False):
    """The data of `to_json`: the kind, and what that kind consists of."""

    kind: Required[VocabKind]
    symbols: list[Count]
    characters: str
    words: list[str]
    model: str


def vocab_from_json(data: Any) -> Vocab:
    """Restore a vocabulary from the data of `to_json`, or raise a MisfitError."""
    stored: StoredVocab = conform(data, StoredVocab)
    kind = stored["kind"]
    if kind == "bytes":
        return ByteVocab()
    needed = kind if kind in ("symbols", "characters", "words") else "model"
    if needed not in stored:
        raise MisfitError(f"{needed} is missing")
    try:
        return _restore(stored)
    except (ValueError, KeyError, RuntimeError) as problem:
        raise MisfitError(f"{needed}: {problem}") from None


def _restore(stored: StoredVocab) -> Vocab:
    if stored["kind"] == "symbols":
        return SymbolVocab(bytes(_all_different(stored["symbols"])))
    if stored["kind"] == "characters":
        return CharacterVocab("".join(_all_different(stored["characters"])))
    if stored["kind"] == "words":
        words = [word.encode("utf-8") for word in _all_different(stored["words"])]
        if words[0] != EOS or UNK not in words:
            raise ValueError("they do not begin with <eos>, or lack <unk>")
        return WordVocab(words)
    return PieceVocab.from_json(stored)


def _all_different(tokens: Sequence[Token]) -> Sequence[Token]:
    if not tokens or len(set(tokens)) < len(tokens):
        raise ValueError("there are none" if not tokens else "some are there twice")
    return tokens


def _start(symbols: str) -> int:
    """The index of the newline, else of the space, else 0."""
    return next((symbols.index(symbol) for symbol in "\n " if symbol in symbols), 0)


def _code_points(text: str) -> npt.NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le"), np.dtype("<u4"))


def _unseen(symbol: str) -> UserError:
    return UserError(
        f"{symbol} does not occur in the training text; remove it, or train with data.vocab=bytes"
    )


def _seen_bytes(text: Text, order: Order) -> bytes:
    """The bytes that occur, in the order of their first appearance, or by falling frequency."""
    counts, seen = np.zeros(256, np.int64), list[int]()
    for chunk in split_chunks(text):
        counts += np.bincount(np.frombuffer(chunk, np.uint8), minlength=256)
        new = set(np.flatnonzero(counts).tolist()).difference(seen)
        seen += sorted(new, key=chunk.index)
    if order == "frequency":
        seen.sort(key=lambda symbol: -counts[symbol])
    return bytes(seen)


def _seen_characters(text: Text) -> set[str]:
    seen: set[str] = set()
    for chunk in decode_chunks(text):
        seen |= set(chunk)
    return seen
