import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparing.data.text import CHUNK_BYTES, count_words, decode_chunks, smallest_dtype, split_chunks
from sparing.errors import UserError


@given(st.binary(max_size=200), st.integers(1, 20))
def test_chunks_join_to_the_text(text: bytes, size: int) -> None:
    parts = list(split_chunks(text, size))
    assert b"".join(parts) == text
    assert all(parts)


@given(st.text(max_size=100), st.integers(1, 9))
def test_chunks_never_cut_a_character(text: str, size: int) -> None:
    encoded = text.encode("utf-8")
    assert "".join(part.decode("utf-8") for part in split_chunks(encoded, size)) == text


def test_chunks_end_after_a_newline_or_a_space() -> None:
    assert list(split_chunks(b"one two\nthree", 10)) == [b"one two\n", b"three"]
    assert list(split_chunks(b"one\ntwo three", 10)) == [b"one\n", b"two three"]
    assert list(split_chunks(b"one two three", 6)) == [b"one ", b"two ", b"three"]


@given(st.binary(max_size=60))
def test_words_are_counted_as_python_splits_them(text: bytes) -> None:
    assert count_words(text) == len(text.split()) + text.count(b"\n")


def test_a_word_longer_than_a_chunk_is_one_word() -> None:
    assert count_words(b"a " + b"x" * (CHUNK_BYTES + 5) + b" b") == 3


def test_a_wrong_byte_is_named_with_its_offset() -> None:
    with pytest.raises(UserError, match=r"not UTF-8 \(byte 0xff at offset 3\).*vocab=bytes"):
        list(decode_chunks(b"abc\xffdef"))


@pytest.mark.parametrize(("size", "width"), [(1, 1), (256, 1), (257, 2), (65_536, 2), (65_537, 4)])
def test_ids_take_the_smallest_unsigned_type(size: int, width: int) -> None:
    assert smallest_dtype(size).itemsize == width
    assert smallest_dtype(size).kind == "u"
