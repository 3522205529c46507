"""Sub-word vocabularies (SentencePiece, arXiv:1808.06226): a lossless one, and PAR's."""

import base64
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from sparing.data.text import Text, decode_chunks, smallest_dtype
from sparing.errors import UserError
from sparing.units import pluralize

Style = Literal["lossless", "par"]
SPACE_MARK = "\u2581"
"""SentencePiece's symbol for a space; if it occurs in a text, it is encoded byte by byte."""

SENTENCE_CHARACTERS = 1000
"""Longer lines are cut before a word, because the trainer skips sentences above 4192 bytes."""

SILENT = 3
"""Log level of the library: its messages would only repeat what its exceptions say."""
MAX_PIECES = 1_000_000
MAX_SENTENCES = 1_000_000
MAX_CHARACTERS = 1 << 24
"""Size of the text that the trainer gets; it takes up to 25 times as much memory."""
SETTINGS: dict[Style, dict[str, Any]] = {
    "lossless": {
        "model_type": "bpe",
        "vocab_size": 8192,
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "add_dummy_prefix": False,
        "allow_whitespace_only_pieces": True,
        "unk_id": 0,
        "bos_id": -1,
        "eos_id": -1,
        "pad_id": -1,
    },
    "par": {
        "model_type": "unigram",
        "vocab_size": 12_000,
        "normalization_rule_name": "nfkc_cf",
        "user_defined_symbols": ["@-@"],
        "pad_id": 0,
        "bos_id": 1,
        "eos_id": 2,
        "unk_id": 3,
    },
}


class PieceVocab:
    """A SentencePiece model.

    `lossless`: byte-pair pieces with byte fallback; decoding restores every UTF-8 text exactly.
    `par`: unigram pieces of case-folded text; line ends, case and rare characters are lost.
    """

    def __init__(self, model: bytes, style: Style) -> None:
        self.model = model
        self.style = style
        self.kind = "pieces" if style == "lossless" else "par-pieces"
        self.lossless = style == "lossless"
        self._processor = _library().SentencePieceProcessor(model_proto=model)
        self.size = int(self._processor.vocab_size())
        self._bytes = tuple(self._token_bytes(id) for id in range(self.size))
        self._byte_ids = {
            self._bytes[id]: id for id in range(self.size) if self._processor.is_byte(id)
        }
        self.start = self._byte_ids[b"\n"] if self.lossless else int(self._processor.eos_id())

    @classmethod
    def train(cls, train_text: Text, size: int | None, *, style: Style = "lossless") -> Self:
        """Train a model of `size` pieces (None: the default of the style)."""
        settings = SETTINGS[style] | ({} if size is None else {"vocab_size": size})
        if not 0 < settings["vocab_size"] <= MAX_PIECES:
            raise UserError(f"data.vocab_size must be from 1 to {MAX_PIECES:,}, not {size}")
        trainer, model = _library().SentencePieceTrainer, io.BytesIO()
        try:
            trainer.train(
                sentence_iterator=iter(_training_sentences(train_text)),
                model_writer=model,
                minloglevel=SILENT,
                **settings,
            )
        except (RuntimeError, OSError) as problem:
            raise _size_error(str(problem), settings["vocab_size"], len(train_text)) from None
        return cls(model.getvalue(), style)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Restore a vocabulary from the data of `to_json`."""
        style: Style = "par" if data["kind"] == "par-pieces" else "lossless"
        return cls(base64.b64decode(data["model"], validate=True), style)

    def ends(self, text: bytes) -> npt.NDArray[Any] | None:
        """See `Vocab`; all tokens of a sentence end with it, because pieces are of altered text."""
        if self.lossless:
            return None
        runs, end = [np.empty(0, np.int64)], 0
        for chunk in decode_chunks(text):
            for number, line in enumerate(chunk.split("\n")):
                end += number > 0
                for sentence in _sentences(line):
                    end += len(sentence.encode("utf-8"))
                    runs.append(np.full(len([*self._encode_sentence(sentence)]), end))
        return np.concatenate(runs)

    def to_json(self) -> dict[str, Any]:
        """See `Vocab`."""
        return {"kind": self.kind, "model": base64.b64encode(self.model).decode("ascii")}

    def encode(self, text: bytes) -> npt.NDArray[Any]:
        """See `Vocab`."""
        runs = [np.empty(0, smallest_dtype(self.size))]
        for chunk in decode_chunks(text):
            runs.append(np.fromiter(self._encode(chunk), smallest_dtype(self.size)))
        return np.concatenate(runs)

    def _encode(self, text: str) -> Iterator[int]:
        lines = text.split("\n")
        for number, line in enumerate(lines):
            if self.lossless and number:
                yield self.start
            for sentence in _sentences(line):
                yield from self._encode_sentence(sentence)

    def _encode_sentence(self, sentence: str) -> Iterator[int]:
        if not self.lossless or SPACE_MARK not in sentence:
            yield from self._processor.encode(sentence)
            return
        for number, part in enumerate(sentence.split(SPACE_MARK)):
            if number:
                yield from (self._byte_ids[bytes([byte])] for byte in SPACE_MARK.encode("utf-8"))
            yield from self._processor.encode(part)

    def decode(self, ids: Sequence[int] | npt.NDArray[Any]) -> bytes:
        """See `Vocab`."""
        text = b"".join([self._bytes[id] for id in ids])
        return text if self.lossless else text.removeprefix(b" ")

    def token_bytes(self, id: int) -> bytes:
        """See `Vocab`."""
        return self._bytes[id]

    def _token_bytes(self, id: int) -> bytes:
        piece: str = self._processor.id_to_piece(id)
        if self._processor.is_byte(id):
            return bytes([int(piece[1:-1], 16)])
        if self._processor.is_control(id):
            return b""
        return piece.replace(SPACE_MARK, " ").encode("utf-8")


def _sentences(line: str) -> Iterator[str]:
    """Cut a long line, if possible before a single space, which does not change any piece."""
    begin = 0
    while len(line) - begin > SENTENCE_CHARACTERS:
        limit = begin + SENTENCE_CHARACTERS
        space = line.rfind(" ", begin + 1, limit)
        yield line[begin : (end := space if space > 0 else limit)]
        begin = end
    if begin < len(line):
        yield line[begin:]


def _training_sentences(text: Text) -> list[str]:
    """Return all sentences, or every second, fourth, ... of a large text."""
    kept: list[str] = []
    stride, characters = 1, 0
    for number, sentence in enumerate(_all_sentences(text)):
        if number % stride == 0:
            kept.append(sentence)
            characters += len(sentence)
        if len(kept) > MAX_SENTENCES or characters > MAX_CHARACTERS:
            kept, stride = kept[::2], 2 * stride
            characters = sum(map(len, kept))
    return kept


def _all_sentences(text: Text) -> Iterator[str]:
    for chunk in decode_chunks(text):
        for line in chunk.split("\n"):
            for sentence in _sentences(line):
                yield from (part for part in sentence.split(SPACE_MARK) if part.strip())


def _size_error(problem: str, size: int, size_bytes: int) -> UserError:
    """Translate SentencePiece's error message, with the nearest size that is possible."""
    advice = "set another data.vocab_size"
    if most := re.search(r"too high.*<= (\d+)", problem):
        advice = f"it yields {most[1]} at most: set data.vocab_size={most[1]} or less"
    elif least := re.search(r"smaller than required.* vs (\d+)", problem):
        advice = f"its single characters need more: set data.vocab_size above {least[1]}"
    elif "sentences_.empty" in problem:
        advice = "it holds nothing but white space"
    return UserError(
        f"cannot make {size} pieces from {pluralize(size_bytes, 'byte')} of text; {advice}"
    )


def _library() -> Any:
    try:
        import sentencepiece
    except ImportError:
        raise UserError(
            "data.vocab=pieces needs SentencePiece: pip install 'sparing[pieces]'"
        ) from None
    sentencepiece.set_min_log_level(SILENT)
    return sentencepiece
