"""Raw text: splitting it into chunks, decoding it, counting its words."""

from collections.abc import Iterator

import numpy as np

from sparing.errors import UserError

CHUNK_BYTES = 1 << 24
SPACES = b" \t\n\r\x0b\x0c"


def split_chunks(text: bytes, size: int = CHUNK_BYTES) -> Iterator[bytes]:
    """Split `text` into chunks of at most about `size` bytes, after a newline or else a space.

    A chunk without either is cut between two characters.
    """
    begin = 0
    while begin < len(text):
        end = begin + size
        if end < len(text):
            space = max(text.rfind(b"\n", begin, end), text.rfind(b" ", begin, end))
            end = space + 1 if space >= 0 else character_boundary(text, end)
        yield text[begin:end]
        begin = min(end, len(text))


def character_boundary(text: bytes, at: int) -> int:
    """Return the first index from `at` on at which a UTF-8 character may start."""
    for index in range(at, at + 4):
        if index >= len(text) or text[index] & 0xC0 != 0x80:
            return min(index, len(text))
    return at


def decode_chunks(text: bytes) -> Iterator[str]:
    """Yield the chunks of UTF-8 text as strings; raise a UserError if it is not UTF-8."""
    offset = 0
    for chunk in split_chunks(text):
        try:
            yield chunk.decode("utf-8")
        except UnicodeDecodeError as problem:
            wrong = f"byte 0x{chunk[problem.start]:02x} at offset {offset + problem.start:,}"
            raise UserError(
                f"the text is not UTF-8 ({wrong}); set data.vocab=bytes, which takes any file"
            ) from None
        offset += len(chunk)


def count_words(text: bytes) -> int:
    """Count words between whitespace plus one per line end, as word perplexity does."""
    table = np.isin(np.arange(256), np.frombuffer(SPACES, np.uint8))
    words, after_space = text.count(b"\n"), True
    for chunk in split_chunks(text):
        space = table[np.frombuffer(chunk, np.uint8)]
        words += int(np.count_nonzero(space[:-1] & ~space[1:]))
        words += int(after_space and not space[0])
        after_space = bool(space[-1])
    return words


def smallest_dtype(size: int) -> np.dtype[np.unsignedinteger]:
    """The smallest little-endian unsigned type that holds ids below `size`."""
    return np.dtype("u1" if size <= 1 << 8 else "<u2" if size <= 1 << 16 else "<u4")
