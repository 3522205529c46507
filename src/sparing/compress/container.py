"""A compressed file: a header, the coded words, and a checksum of both."""

import hashlib
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparing.compress.codec import FREQUENCY_BITS, Words
from sparing.compress.lanes import MAX_LANES, Learning
from sparing.errors import UserError
from sparing.inputs import MAX_BYTES

SUFFIX = ".sparing"
MAGIC = b"\x93sparing"
"""No UTF-8 text begins like this."""
FORMAT = 1
FIXED = struct.Struct("<8sHIHBBIdQQ32s32s16sB")
"""Magic, format, lanes, threads, precision, bits of a frequency, chunk and rate of learning, bytes
and tokens of the text, its SHA-256, that of the model, the fingerprint, and the length of `maker`,
which follows."""
PRECISIONS = ("float32",)
"""By number, those that models predict in."""
CHECKSUM_BYTES = 8
MAX_THREADS = 256
MAX_MAKER = 255
WORD = np.dtype("<u4")


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """What must be the same when a text is decoded, and what must come out."""

    lanes: int
    threads: int
    learning: Learning | None
    size_bytes: int
    tokens: int
    text_sha256: bytes
    model_sha256: bytes
    fingerprint: bytes
    """Of what the model predicts where the file was made: see `codec.take_fingerprint`."""
    maker: str
    """Versions and processor, for the message where the fingerprint differs."""


def write_container(header: Header, words: Words) -> bytes:
    """Return the bytes of a compressed file."""
    chunk, rate = (header.learning.chunk, header.learning.rate) if header.learning else (0, 0.0)
    maker = header.maker.encode("utf-8")[:MAX_MAKER].decode("utf-8", "ignore").encode("utf-8")
    fields: tuple[Any, ...] = (
        MAGIC,
        FORMAT,
        header.lanes,
        header.threads,
        PRECISIONS.index("float32"),
        FREQUENCY_BITS,
        chunk,
        rate,
        header.size_bytes,
        header.tokens,
        header.text_sha256,
        header.model_sha256,
        header.fingerprint,
        len(maker),
    )
    return seal(FIXED.pack(*fields) + maker + words.astype(WORD).tobytes())


def read_container(data: bytes, name: str) -> tuple[Header, Words]:
    """Return header and coded words, or raise a UserError that begins with `name`."""
    if not data.startswith(MAGIC):
        raise UserError(f"{name} was not made by `sparing compress`")
    body = data[:-CHECKSUM_BYTES]
    if data != seal(body):
        raise UserError(f"{name} is damaged: bytes were changed, added or cut off")
    version = int.from_bytes(body[len(MAGIC) : len(MAGIC) + 2], "little")
    if version != FORMAT:
        raise UserError(f"{name} has format {version}; this version of sparing reads {FORMAT}")
    try:
        return _parse(body)
    except (ValueError, struct.error, UserError) as problem:
        raise UserError(f"{name} is damaged: {problem}") from None


def _parse(body: bytes) -> tuple[Header, Words]:
    (_, _, lanes, threads, precision, bits, chunk, rate, *rest) = FIXED.unpack_from(body)
    size_bytes, tokens, text, model, fingerprint, length = rest
    if (precision, bits) != (PRECISIONS.index("float32"), FREQUENCY_BITS):
        raise ValueError(f"it asks for precision {precision} and {bits} bits")
    if not 1 <= lanes <= min(MAX_LANES, max(1, tokens)) or not 1 <= threads <= MAX_THREADS:
        raise ValueError(f"it asks for {lanes} lanes and {threads} threads")
    if not tokens <= size_bytes <= MAX_BYTES:
        raise ValueError(f"it claims {tokens} tokens in {size_bytes} bytes")
    maker, coded = body[FIXED.size :][:length], body[FIXED.size + length :]
    if len(maker) < length or len(coded) % WORD.itemsize:
        raise ValueError("its parts do not fit together")
    header = Header(
        lanes=lanes,
        threads=threads,
        learning=Learning(chunk=chunk, rate=rate) if chunk else None,
        size_bytes=size_bytes,
        tokens=tokens,
        text_sha256=text,
        model_sha256=model,
        fingerprint=fingerprint,
        maker=maker.decode("utf-8"),
    )
    return header, np.frombuffer(coded, WORD).astype(np.uint32)


def seal(body: bytes) -> bytes:
    """Append the checksum."""
    return body + hashlib.sha256(body).digest()[:CHECKSUM_BYTES]
