"""The file format: every field comes back, and every change of a byte is noticed."""

import struct
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from sparing.compress.container import (
    FIXED,
    MAGIC,
    Header,
    read_container,
    seal,
    write_container,
)
from sparing.compress.lanes import Learning
from sparing.errors import UserError

HEADER = Header(
    lanes=3,
    threads=2,
    learning=None,
    size_bytes=1000,
    tokens=900,
    text_sha256=bytes(range(32)),
    model_sha256=bytes(range(50, 82)),
    fingerprint=bytes(range(100, 116)),
    maker="sparing 1, torch 2, x86_64 \N{GREEK SMALL LETTER OMEGA}",
)
WORDS = np.arange(50, dtype=np.uint32) * 80_000_007


@pytest.mark.parametrize("learning", [None, Learning(chunk=7, rate=0.1)])
@pytest.mark.parametrize("words", [WORDS, WORDS[:0]])
def test_every_field_comes_back(learning: Learning | None, words: np.ndarray) -> None:
    header = replace(HEADER, learning=learning)
    blob = write_container(header, words)
    found, coded = read_container(blob, "x")
    assert found == header
    assert np.array_equal(coded, words)
    maker = len(header.maker.encode())
    assert len(blob) == FIXED.size + maker + 4 * len(words) + 8


def test_a_long_name_of_a_machine_is_cut_between_characters() -> None:
    blob = write_container(replace(HEADER, maker="\N{GREEK SMALL LETTER OMEGA}" * 300), WORDS)
    assert read_container(blob, "x")[0].maker == "\N{GREEK SMALL LETTER OMEGA}" * 127


def test_every_byte_counts() -> None:
    blob = write_container(HEADER, WORDS)
    for at in range(len(blob)):
        changed = bytearray(blob)
        changed[at] ^= 1 << at % 8
        with pytest.raises(UserError, match=r"^x (is damaged|was not made)"):
            read_container(bytes(changed), "x")


def test_what_is_cut_off_or_added_is_refused() -> None:
    blob = write_container(HEADER, WORDS)
    for size in range(len(blob)):
        with pytest.raises(UserError, match=r"^x (is damaged|was not made)"):
            read_container(blob[:size], "x")
    for extra in (b"\0", b"\n", blob[-8:], blob):
        with pytest.raises(UserError, match=r"^x is damaged"):
            read_container(blob + extra, "x")


@pytest.mark.parametrize("data", [b"", b"hello", b"\x1f\x8b\x08", MAGIC[:-1], b" " + MAGIC])
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(UserError, match=r"^x was not made by `sparing compress`"):
        read_container(data, "x")


def test_a_later_format_is_named() -> None:
    body = bytearray(write_container(HEADER, WORDS)[:-8])
    body[8:10] = struct.pack("<H", 2)
    with pytest.raises(UserError, match="x has format 2; this version of sparing reads 1"):
        read_container(seal(bytes(body)), "x")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (2, 0), (2, 901), (2, 1 << 31), (3, 0), (3, 60_000), (4, 9), (5, 16), (6, 1 << 30),
        (8, 1 << 62), (8, 899), (9, 1001), (9, 1 << 63), (13, 255),
    ],
)  # fmt: skip
def test_a_header_that_makes_no_sense_is_refused(field: int, value: int) -> None:
    body = write_container(HEADER, WORDS)[:-8]
    fields = list(FIXED.unpack_from(body))
    fields[field] = value
    with pytest.raises(UserError, match=r"^x is damaged: "):
        read_container(seal(FIXED.pack(*fields) + body[FIXED.size :]), "x")


def test_random_bytes_behind_a_sound_checksum_never_end_in_a_traceback() -> None:
    random = Random(1)
    for _ in range(300):
        blob = seal(MAGIC + b"\1\0" + random.randbytes(random.randrange(400)))
        with pytest.raises(UserError, match=r"^x is damaged: "):
            read_container(blob, "x")
