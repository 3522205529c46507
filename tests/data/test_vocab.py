import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.conftest import read_all

from sparing.data import words
from sparing.data.vocab import ByteVocab, SymbolVocab, Vocab, train_vocab, vocab_from_json
from sparing.documents import MisfitError
from sparing.errors import UserError

TEXT = "a bb\nccc  dé\tß €\U0001f600\n\nbb a\n".encode()
REPAIRED = ("bytes", "symbols", "characters", "words")


def again(vocab: Vocab) -> Vocab:
    """The vocabulary after a trip through a JSON file."""
    return vocab_from_json(json.loads(json.dumps(vocab.to_json())))


@given(st.binary())
def test_bytes_and_symbols_restore_any_text(text: bytes) -> None:
    assert ByteVocab().decode(ByteVocab().encode(text)) == text
    if text:
        vocab = train_vocab("symbols", text)
        assert vocab.decode(vocab.encode(text)) == text
        assert vocab.size == len(set(text))


@given(st.text(min_size=1))
def test_characters_restore_any_unicode_text(text: str) -> None:
    vocab = train_vocab("characters", text.encode("utf-8"))
    ids = vocab.encode(text.encode("utf-8"))
    assert len(ids) == len(text)
    assert vocab.size == len(set(text))
    assert vocab.decode(ids) == text.encode("utf-8")


@pytest.mark.parametrize("kind", REPAIRED)
def test_a_stored_vocabulary_gives_the_same_ids(kind: str) -> None:
    vocab = train_vocab(kind, TEXT)
    stored = again(vocab)
    assert stored.kind == vocab.kind == kind
    assert (stored.size, stored.start, stored.lossless) == (
        vocab.size,
        vocab.start,
        vocab.lossless,
    )
    np.testing.assert_array_equal(stored.encode(TEXT), vocab.encode(TEXT))


@pytest.mark.parametrize("kind", ["bytes", "symbols", "characters"])
def test_tokens_of_a_lossless_text_join_to_it(kind: str) -> None:
    vocab = train_vocab(kind, TEXT)
    assert b"".join(vocab.token_bytes(id) for id in vocab.encode(TEXT).tolist()) == TEXT


def test_symbols_come_most_frequent_first_or_in_order_of_appearance() -> None:
    assert train_vocab("symbols", b"cabbb\na").to_json()["symbols"] == list(b"bac\n")
    appearance = train_vocab("symbols", b"cabbb\na", symbol_order="appearance")
    assert appearance.to_json()["symbols"] == list(b"cab\n")


@pytest.mark.parametrize(
    ("kind", "text", "start"),
    [
        ("bytes", b"ab", b"\n"),
        ("symbols", b"a b\nc", b"\n"),
        ("symbols", b"a b", b" "),
        ("symbols", b"ab", b"a"),
        ("characters", b"a b\nc", b"\n"),
        ("characters", b"b a", b" "),
        ("words", b"a b", b"\n"),
    ],
)
def test_the_start_token_is_a_line_end_if_there_is_one(
    kind: str, text: bytes, start: bytes
) -> None:
    vocab = train_vocab(kind, text)
    assert vocab.token_bytes(vocab.start) == start


def test_words_are_sorted_by_frequency_after_eos() -> None:
    vocab = train_vocab("words", b"b a a <unk> c c\n c\n")
    assert vocab.to_json()["words"] == ["<eos>", "c", "a", "b", "<unk>"]
    assert vocab.encode(b"a  zebra\n\nb").tolist() == [2, 4, 0, 0, 3]
    assert vocab.decode([2, 4, 0, 0, 3]) == b"a <unk>\n\nb"


def test_a_word_vocabulary_always_has_unk() -> None:
    vocab = train_vocab("words", b"a b\n")
    assert vocab.decode(vocab.encode(b"zebra a")) == b"<unk> a"


@given(st.text(alphabet="ab \n\t", min_size=1))
def test_word_tokens_are_words_plus_line_ends(text: str) -> None:
    encoded = text.encode()
    ids = train_vocab("words", b"a b").encode(encoded)
    assert len(ids) == len(encoded.split()) + encoded.count(b"\n")


@pytest.mark.parametrize(
    ("kind", "text", "symbol"),
    [("symbols", b"abz", r"b'z' \(0x7a\)"), ("characters", "abé".encode(), r"'é' \(U\+00E9\)")],
)
def test_an_unseen_symbol_is_named_with_a_remedy(kind: str, text: bytes, symbol: str) -> None:
    with pytest.raises(
        UserError, match=f"{symbol} does not occur in the training text.*vocab=bytes"
    ):
        train_vocab(kind, b"ab").encode(text)


@pytest.mark.parametrize("kind", ["characters", "words"])
def test_text_that_is_not_utf8_is_refused(kind: str) -> None:
    with pytest.raises(UserError, match="not UTF-8"):
        train_vocab(kind, b"abc\xff")
    with pytest.raises(UserError, match="not UTF-8"):
        train_vocab(kind, b"abc").encode(b"a\xff")


def test_wrong_kinds_and_damaged_data_are_refused() -> None:
    with pytest.raises(UserError, match="did you mean 'bytes'"):
        train_vocab("byte", b"abc")
    with pytest.raises(UserError, match="no training text"):
        train_vocab("words", b"")


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        ({}, "kind is missing"),
        ({"kind": "runes"}, "kind cannot be 'runes'"),
        ({"kind": "symbols"}, "symbols is missing"),
        ({"kind": "symbols", "symbols": ["x"]}, "symbols must be a whole number"),
        ({"kind": "symbols", "symbols": [256]}, "symbols: bytes must be in range"),
        ({"kind": "symbols", "symbols": [65, 65]}, "symbols: some are there twice"),
        ({"kind": "characters", "characters": ""}, "characters: there are none"),
        ({"kind": "characters", "characters": "\ud800"}, "characters: 'utf-32-le' codec"),
        ({"kind": "words", "words": ["a", "<eos>", "<unk>"]}, "words: they do not begin"),
        ({"kind": "words", "words": ["<eos>", "\ud800", "<unk>"]}, "words: 'utf-8' codec"),
        ({"kind": "pieces", "model": "?"}, "model: "),
    ],
)
def test_stored_data_that_is_no_vocabulary_is_refused(stored: object, words: str) -> None:
    with pytest.raises(MisfitError) as refusal:
        vocab_from_json(stored)
    assert str(refusal.value).startswith(words)


def test_enwik8_has_205_symbols(enwik8: dict[str, bytes]) -> None:
    vocab = train_vocab("symbols", enwik8["train"])
    assert vocab.size == 205
    assert vocab.token_bytes(0) == b" "
    assert len(vocab.encode(enwik8["valid"])) == 5_000_000
    assert vocab.decode(vocab.encode(enwik8["test"])) == enwik8["test"]
    first = train_vocab("symbols", enwik8["train"], symbol_order="appearance")
    assert isinstance(first, SymbolVocab)
    assert first.symbols.startswith(b"<mediawk")


def test_a_text_of_too_many_words_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "MAX_WORDS", 3)
    train_vocab("words", b"a b a b\n")
    with pytest.raises(UserError, match=r"more than 3 different words; set data\.vocab=pieces"):
        train_vocab("words", b"a b c\n d")


def test_wikitext_2_has_its_published_counts(shared_data: Path) -> None:
    splits = read_all("wikitext-2", shared_data / "wikitext-2.tar.xz")
    vocab = train_vocab("words", splits["train"])
    assert vocab.size == 33_278
    tokens = [len(vocab.encode(splits[split])) for split in ("train", "valid", "test")]
    assert tokens == [2_088_628, 217_646, 245_569]
