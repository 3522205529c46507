"""Raw text: cutting it into chunks, decoding it, counting its words."""

from collections.abc import Iterator

import numpy as np

from sparing.errors import UserError

CHUNK_BYTES = 1 << 24
SPACES = b" \t\n\r\x0b\x0c"


def chunks(text: bytes, size: int = CHUNK_BYTES) -> Iterator[bytes]:
    """Cut `text` after a newline or else a space, into runs of at most about `size` bytes.

    A run without either is cut between two characters.
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
    """The first place from `at` on where a UTF-8 character may begin."""
    for place in range(at, at + 4):
        if place >= len(text) or text[place] & 0xC0 != 0x80:
            return min(place, len(text))
    return at


def decoded(text: bytes) -> Iterator[str]:
    """The chunks of UTF-8 text as strings; a UserError where it is not UTF-8."""
    offset = 0
    for chunk in chunks(text):
        try:
            yield chunk.decode("utf-8")
        except UnicodeDecodeError as problem:
            wrong = f"byte 0x{chunk[problem.start]:02x} at offset {offset + problem.start:,}"
            raise UserError(
                f"the text is not UTF-8 ({wrong}); set data.vocab=bytes, which takes any file"
            ) from None
        offset += len(chunk)


def count_words(text: bytes) -> int:
    """Words between whitespace plus one for each line end, as word perplexity counts them."""
    table = np.isin(np.arange(256), np.frombuffer(SPACES, np.uint8))
    words, after_space = text.count(b"\n"), True
    for chunk in chunks(text):
        space = table[np.frombuffer(chunk, np.uint8)]
        words += int(np.count_nonzero(space[:-1] & ~space[1:]))
        words += int(after_space and not space[0])
        after_space = bool(space[-1])
    return words


def unsigned(size: int) -> np.dtype[np.unsignedinteger]:
    """The smallest little-endian unsigned type that holds ids below `size`."""
    return np.dtype("u1" if size <= 1 << 8 else "<u2" if size <= 1 << 16 else "<u4")
