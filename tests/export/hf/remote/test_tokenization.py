"""Every vocabulary encodes and decodes as it does here."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.export.hf.conftest import LETTERS, SEGMENT
from tests.models.tiny import tiny

from sparing.data.vocab import ByteVocab, CharacterVocab, Vocab, train_vocab
from sparing.export.hf.folder import write_folder

TEXT = b"the cat saw a hat \n that the cat had \n \xc3\xa4 and \xe2\x9c\x93 the end \n" * 20


def exported(folder: Path, vocab: Vocab) -> Any:
    from transformers import AutoTokenizer

    write_folder(folder, tiny("awd_lstm").float(), LETTERS, segment=SEGMENT)
    (folder / "sparing_vocab.json").write_text(json.dumps(vocab.to_json()))
    return AutoTokenizer.from_pretrained(folder, trust_remote_code=True)


def test_all_bytes_survive(tmp_path: Path) -> None:
    tokenizer = exported(tmp_path, ByteVocab())
    every = bytes(range(256)) + "Größe ✓ 🙂".encode()
    text = every.decode("utf-8", "surrogateescape")
    ids = tokenizer(text)["input_ids"]
    assert ids == list(every)
    tokenizer.errors = "surrogateescape"
    assert tokenizer.decode(ids) == text
    assert len(tokenizer) == 256
    assert tokenizer.convert_tokens_to_string(tokenizer.tokenize(text)) == text


@pytest.mark.parametrize("kind", ["symbols", "characters", "words", "pieces", "par-pieces"])
def test_ids_and_texts_are_those_of_the_vocabulary(kind: str, tmp_path: Path) -> None:
    if "pieces" in kind:
        pytest.importorskip("sentencepiece")
    size = {"pieces": 300, "par-pieces": 24}.get(kind)
    vocab = train_vocab(kind, TEXT, size)
    tokenizer = exported(tmp_path, vocab)
    ids = vocab.encode(TEXT).tolist()
    assert tokenizer(TEXT.decode())["input_ids"] == ids
    assert tokenizer.decode(ids) == vocab.decode(ids).decode()
    assert tokenizer.convert_tokens_to_ids(tokenizer.convert_ids_to_tokens(ids)) == ids
    assert {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id} == {vocab.start}


def test_batches_are_padded_on_the_left(tmp_path: Path) -> None:
    tokenizer = exported(tmp_path, CharacterVocab("\nabc"))
    batch = tokenizer(["abc", "b"], padding=True)
    assert batch["input_ids"] == [[1, 2, 3], [0, 0, 2]]
    assert batch["attention_mask"] == [[1, 1, 1], [0, 0, 1]]


def test_padding_among_bytes_can_be_told_from_text_and_skipped(tmp_path: Path) -> None:
    tokenizer = exported(tmp_path, ByteVocab())
    batch = tokenizer(["a\nb", "\n"], padding=True)
    assert batch["input_ids"] == [[97, 10, 98], [0, 0, 10]]
    assert tokenizer.batch_decode(batch["input_ids"], skip_special_tokens=True) == ["a\nb", "\n"]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (10, 0, 0)


def test_a_token_that_does_not_exist_has_no_id(tmp_path: Path) -> None:
    tokenizer = exported(tmp_path, ByteVocab())
    assert tokenizer.convert_tokens_to_ids(["a", "<|im_end|>"]) == [97, None]


def test_a_saved_copy_loads_again(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    exported(tmp_path, ByteVocab()).save_pretrained(tmp_path / "again")
    again = AutoTokenizer.from_pretrained(tmp_path / "again", trust_remote_code=True)
    assert again("a\nb")["input_ids"] == [97, 10, 98]
