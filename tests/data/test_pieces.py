import json

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sparing.data import pieces as pieces_module
from sparing.data.pieces import SENTENCE_CHARACTERS, SPACE_MARK, PieceVocab
from sparing.data.vocab import train_vocab, vocab_from_json
from sparing.documents import MisfitError
from sparing.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore:builtin type")
TEXT = b"".join(
    f"def name_{n}(value):\n    return value + {n * n}  # twice the value\n\n".encode()
    for n in range(60)
)


@pytest.fixture(scope="module")
def pieces() -> PieceVocab:
    pytest.importorskip("sentencepiece")
    return PieceVocab.train(TEXT, 340)


@pytest.fixture(scope="module")
def par() -> PieceVocab:
    pytest.importorskip("sentencepiece")
    return PieceVocab.train(b"The Well @-@ known cat sat .\nA dog .\n" * 30, 22, style="par")


@settings(max_examples=300)
@given(st.text() | st.text(alphabet=f"ab \n\t\r\0{SPACE_MARK}<>0xA"))
@example("  two  spaces\n\n\ttab \r\n <0x0A> <unk> <s> ⁇ \u2585 \ufeff e\u0301 ﬁ \u3000")
@example(SPACE_MARK + " " + SPACE_MARK)
@example("word " * SENTENCE_CHARACTERS)
@example("x" * (2 * SENTENCE_CHARACTERS + 1))
@example(" " * (2 * SENTENCE_CHARACTERS + 1))
def test_decoding_restores_every_utf8_text(pieces: PieceVocab, text: str) -> None:
    encoded = text.encode("utf-8")
    ids = pieces.encode(encoded)
    assert pieces.decode(ids) == encoded
    assert b"".join(pieces.token_bytes(id) for id in ids.tolist()) == encoded


def test_pieces_are_longer_than_bytes(pieces: PieceVocab) -> None:
    assert pieces.size == 340
    assert len(pieces.encode(TEXT)) < len(TEXT) / 2
    assert pieces.encode(TEXT).dtype == np.uint16


def test_a_text_starts_after_a_newline(pieces: PieceVocab) -> None:
    assert pieces.token_bytes(pieces.start) == b"\n"
    assert pieces.encode(b"\n").tolist() == [pieces.start]


def test_a_stored_model_gives_the_same_ids(pieces: PieceVocab, par: PieceVocab) -> None:
    for vocab in (pieces, par):
        stored = vocab_from_json(json.loads(json.dumps(vocab.to_json())))
        assert (stored.kind, stored.lossless) == (vocab.kind, vocab.lossless)
        np.testing.assert_array_equal(stored.encode(TEXT), vocab.encode(TEXT))


def test_training_twice_gives_the_same_model(pieces: PieceVocab) -> None:
    assert PieceVocab.train(TEXT, 340).model == pieces.model


def test_cutting_a_long_line_before_a_word_does_not_change_the_pieces(pieces: PieceVocab) -> None:
    line = b" return value" * 200
    assert len(line) > 2 * SENTENCE_CHARACTERS
    assert pieces.encode(line).tolist() == pieces.encode(b" return value").tolist() * 200


def test_par_pieces_have_the_original_ids_and_fold_case(par: PieceVocab) -> None:
    names = [par._processor.id_to_piece(id) for id in range(5)]
    assert names == ["<pad>", "<s>", "</s>", "<unk>", "@-@"]
    assert par.start == 2
    assert not par.lossless
    assert par.decode(par.encode(b"The cat\nSAT")) == b"the cat sat"
    assert 4 in par.encode(b"well @-@ known")


def test_kinds_choose_the_style() -> None:
    pytest.importorskip("sentencepiece")
    assert train_vocab("pieces", TEXT, 340).kind == "pieces"
    assert train_vocab("par-pieces", TEXT, 60).kind == "par-pieces"


@pytest.mark.parametrize("size", [10, 100_000])
def test_an_impossible_size_is_refused_in_one_line(size: int) -> None:
    pytest.importorskip("sentencepiece")
    with pytest.raises(UserError, match=f"cannot make {size} pieces") as caught:
        PieceVocab.train(TEXT, size)
    assert "\n" not in str(caught.value)


def test_the_error_for_an_impossible_size_names_a_possible_one() -> None:
    pytest.importorskip("sentencepiece")
    with pytest.raises(UserError, match=r"at most: set data\.vocab_size=(\d+) or less$") as caught:
        PieceVocab.train(TEXT, 100_000)
    most = int(str(caught.value).partition("vocab_size=")[2].split()[0])
    assert PieceVocab.train(TEXT, most).size == most
    with pytest.raises(UserError, match=r"set data\.vocab_size above (\d+)$") as caught:
        PieceVocab.train(TEXT, 10)
    assert PieceVocab.train(TEXT, int(str(caught.value).split()[-1]) + 1)
    with pytest.raises(UserError, match="nothing but white space"):
        PieceVocab.train(b"  \n" * 50, 300)


def test_text_that_is_not_utf8_is_refused(pieces: PieceVocab) -> None:
    with pytest.raises(UserError, match="not UTF-8"):
        pieces.encode(b"\xff")
    with pytest.raises(UserError, match="not UTF-8"):
        PieceVocab.train(b"abc\xff", 300)


@pytest.mark.parametrize("model", ["AAAA", ""])
def test_a_damaged_model_is_refused_without_a_word_of_the_library(
    model: str, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sentencepiece")
    with pytest.raises(MisfitError, match="model: "):
        vocab_from_json({"kind": "pieces", "model": model})
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("size", [0, -5, 2**31 - 1, 10**11])
def test_a_size_that_no_vocabulary_can_have_is_refused(size: int) -> None:
    pytest.importorskip("sentencepiece")
    with pytest.raises(UserError, match=r"vocab_size must be from 1 to 1,000,000, not "):
        PieceVocab.train(TEXT, size)


@pytest.mark.parametrize("bound", ["MAX_SENTENCES", "MAX_CHARACTERS"])
def test_of_a_large_text_the_trainer_gets_every_nth_sentence(
    bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = b"".join(b"%03d\n" % number for number in range(100))
    monkeypatch.setattr(pieces_module, bound, 40 if bound == "MAX_SENTENCES" else 120)
    kept = pieces_module._training_sentences(text)
    assert kept == [f"{number:03d}" for number in range(0, 100, 4)]
    # Also if it has no lines, only words.
    monkeypatch.setattr(pieces_module, "SENTENCE_CHARACTERS", 4)
    assert pieces_module._training_sentences(text.replace(b"\n", b" ")) == [
        " " * bool(number) + f"{number:03d}" for number in range(0, 100, 4)
    ]
