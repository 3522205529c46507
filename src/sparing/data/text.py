"""Raw text: splitting it into chunks, decoding it, counting its words."""

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from sparing.errors import UserError

CHUNK_BYTES = 1 << 24
SPACES = b" \t\n\r\x0b\x0c"


class Text(Protocol):
    """A text that can be cut without reading it: a stretch of a file, or plain bytes."""

    def __len__(self) -> int:
        """Its size in bytes."""
        ...

    def __getitem__(self, part: slice, /) -> "Text":
        """Cut out a part of it."""
        ...

    def __bytes__(self) -> bytes:
        """Read it into memory."""
        ...


class WatchedText:
    """A text that reports how many bytes of it are read, for a progress bar."""

    def __init__(self, text: Text, report: Callable[[int], object]) -> None:
        self._text = text
        self._report = report

    def __len__(self) -> int:
        return len(self._text)

    def __getitem__(self, part: slice) -> "WatchedText":
        return WatchedText(self._text[part], self._report)

    def __bytes__(self) -> bytes:
        self._report(len(self._text))
        return bytes(self._text)


def split_chunks(text: Text, size: int = CHUNK_BYTES) -> Iterator[bytes]:
    """Split `text` into chunks of at most about `size` bytes, after a newline or else a space.

    A chunk without either is cut between two characters. Every byte is read once.
    """
    chunk, read = b"", 0
    while read < len(text):
        more = bytes(text[read : read + size - len(chunk)])
        chunk, read = chunk + more, read + len(more)
        if read == len(text):
            break
        end = 1 + (chunk.rfind(b"\n") if b"\n" in chunk else chunk.rfind(b" "))
        if not end:
            # The rest of a character is at most three bytes.
            more = bytes(text[read : read + 3])
            chunk, read, end = chunk + more, read + len(more), len(chunk)
            end = character_boundary(chunk, end)
        yield chunk[:end]
        chunk = chunk[end:]
    if chunk:
        yield chunk


def split_blocks(text: Text, size: int = 1 << 20) -> Iterator[bytes]:
    """Split `text` into blocks of `size` bytes, wherever their ends fall."""
    return (bytes(text[at : at + size]) for at in range(0, len(text), size))


def character_boundary(text: Text, at: int) -> int:
    """Return the first index from `at` on at which a UTF-8 character may start."""
    near = bytes(text[at : at + 4])
    for index, byte in enumerate(near):
        if byte & 0xC0 != 0x80:
            return at + index
    return at if len(near) == 4 else len(text)


def decode_chunks(text: Text, begin: int = 0) -> Iterator[str]:
    """Yield the chunks of UTF-8 text as strings; raise a UserError if it is not UTF-8.

    `begin` is the offset of `text` in a longer one, in which the error counts.
    """
    for chunk in split_chunks(text):
        try:
            yield chunk.decode("utf-8")
        except UnicodeDecodeError as problem:
            wrong = f"byte 0x{chunk[problem.start]:02x} at offset {begin + problem.start:,}"
            raise UserError(
                f"the text is not UTF-8 ({wrong}); set data.vocab=bytes, which takes any file"
            ) from None
        begin += len(chunk)


class WordCount:
    """Counts words between whitespace plus one per line end, as word perplexity does."""

    def __init__(self) -> None:
        self.words = 0
        self._after_space = True
        self._is_space = np.isin(np.arange(256), np.frombuffer(SPACES, np.uint8))

    def update(self, chunk: bytes) -> None:
        """Count the words of the next part of a text, which is not empty."""
        space = self._is_space[np.frombuffer(chunk, np.uint8)]
        self.words += chunk.count(b"\n") + int(np.count_nonzero(space[:-1] & ~space[1:]))
        self.words += int(self._after_space and not space[0])
        self._after_space = bool(space[-1])


def count_words(text: Text) -> int:
    """Count words between whitespace plus one per line end, as word perplexity does."""
    count = WordCount()
    for chunk in split_chunks(text):
        count.update(chunk)
    return count.words


def smallest_dtype(size: int) -> np.dtype[np.unsignedinteger]:
    """The smallest little-endian unsigned type that holds numbers below `size`."""
    for bits, name in ((8, "u1"), (16, "<u2"), (32, "<u4")):
        if size <= 1 << bits:
            return np.dtype(name)
    return np.dtype("<u8")


def encode_text(text: str) -> bytes:
    """UTF-8, with the bytes of a command line or file name that are not UTF-8 as they were."""
    try:
        return text.encode("utf-8", errors="surrogateescape")
    except UnicodeEncodeError:
        raise UserError("the text holds half of a surrogate pair, which is no character") from None
