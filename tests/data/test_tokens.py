import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparing.data import text as text_module
from sparing.data import tokenize, tokens
from sparing.data.local import split_by_bytes
from sparing.data.tokens import (
    BYTE_LIKE,
    DataConfig,
    drop_newlines,
    open_tokens,
    prepare,
    split_from_text,
    truncate_split,
)
from sparing.data.vocab import ByteVocab, train_vocab
from sparing.errors import UserError

TEXT = b"the cat sat on the mat .\nthe dog  sat .\n\n" * 25
KINDS = ("bytes", "symbols", "characters", "words", "pieces")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "own text.txt"
    path.write_bytes(TEXT)
    return path


def config(corpus: Path, **settings: Any) -> DataConfig:
    return DataConfig(corpus=str(corpus), **settings)


@pytest.mark.filterwarnings("ignore:builtin type")
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_decode_to_the_text(corpus: Path, kind: Any) -> None:
    if kind == "pieces":
        pytest.importorskip("sentencepiece")
    size = 290 if kind == "pieces" else None
    found = prepare(config(corpus, vocab=kind, vocab_size=size), progress=False)
    for name, text in split_by_bytes(TEXT).items():
        split = found.split(name)
        np.testing.assert_array_equal(split.ids, found.vocab.encode(text))
        assert split.size_bytes == len(text)
        counted = len(text.split()) + text.count(b"\n")
        assert split.words == (0 if kind in BYTE_LIKE else counted)
        assert split.start == found.vocab.start
        if found.vocab.lossless:
            assert found.vocab.decode(split.ids) == text


def test_ids_are_memory_mapped_and_read_only(corpus: Path) -> None:
    ids = prepare(config(corpus), progress=False).split("train").ids
    assert isinstance(ids, np.memmap)
    assert ids.dtype == np.uint8
    with pytest.raises(ValueError, match="read-only"):
        ids[0] = 1


def test_each_splits_text_has_a_checksum(corpus: Path) -> None:
    found = prepare(config(corpus, vocab="symbols"), progress=False).text_sha256()
    parts = split_by_bytes(TEXT)
    assert found == {name: hashlib.sha256(text).hexdigest() for name, text in parts.items()}


def test_a_full_disk_leaves_no_folder(
    corpus: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Any, values: Any) -> None:
        self.path.write_bytes(b"x")
        raise OSError(errno.ENOSPC, "No space left on device", str(self.path))

    monkeypatch.setattr(tokenize._ArrayFile, "append", full)
    with pytest.raises(OSError, match=r"No space left.*train\.bin"):
        prepare(config(corpus), progress=False)
    assert list((cache / "tokens").iterdir()) == []


def test_a_second_call_does_not_read_the_corpus(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = prepare(config(corpus), progress=False)
    monkeypatch.setattr(tokens, "read_splits", None)
    second = prepare(config(corpus), progress=False)
    assert second.folder == first.folder
    assert second.config == first.config


def test_a_changed_file_or_setting_is_tokenized_again(corpus: Path) -> None:
    first = prepare(config(corpus), progress=False)
    assert prepare(config(corpus, newlines=False), progress=False).folder != first.folder
    corpus.write_bytes(TEXT + b"more\n")
    changed = prepare(config(corpus), progress=False)
    assert changed.folder != first.folder
    assert changed.vocab.decode(changed.split("test").ids).endswith(b"more\n")


def test_tokens_of_another_kind_of_vocabulary_have_a_folder_of_their_own(corpus: Path) -> None:
    words = config(corpus, vocab="words")
    # As when a run is resumed with another data.vocab, before that is refused.
    given = prepare(words, progress=False, vocab=ByteVocab())
    assert given.vocab.kind == "bytes"
    assert prepare(words, progress=False).vocab.kind == "words"


def test_folders_are_named_after_corpus_and_vocabulary(corpus: Path, cache: Path) -> None:
    folder = prepare(config(corpus), progress=False).folder
    assert folder.parent == cache / "tokens"
    assert folder.name.startswith("own-text-txt-bytes-")
    assert {path.name for path in folder.iterdir()} == {
        "train.bin",
        "valid.bin",
        "test.bin",
        "meta.json",
        "verified.json",
    }


def test_a_failure_leaves_no_folder(corpus: Path, cache: Path) -> None:
    corpus.write_bytes(b"a" * 1000 + b"b" * 100)
    with pytest.raises(UserError, match="does not occur in the training text"):
        prepare(config(corpus, vocab="symbols"), progress=False)
    assert list((cache / "tokens").iterdir()) == []


def test_newlines_can_be_removed_before_tokenizing(corpus: Path) -> None:
    found = prepare(config(corpus, vocab="symbols", newlines=False), progress=False)
    assert found.vocab.size == len(set(TEXT)) - 1
    assert b"\n" not in found.vocab.decode(found.split("train").ids)


@pytest.mark.parametrize("damage", ["flipped", "cut", "grown", "missing", "pipe"])
@pytest.mark.parametrize("name", ["valid.bin", "test.ends"])
def test_a_damaged_token_file_is_refused_by_name(corpus: Path, name: str, damage: str) -> None:
    folder = prepare(config(corpus, vocab="words"), progress=False).folder
    path = folder / name
    content = bytearray(path.read_bytes())
    path.unlink()
    if damage == "pipe":
        os.mkfifo(path)
    elif damage != "missing":
        content[-1] ^= damage == "flipped"
        path.write_bytes({"cut": content[:-1], "grown": content + b"x"}.get(damage, content))
    with pytest.raises(UserError, match=rf"{name} is .*delete the folder .* to prepare it again"):
        open_tokens(folder)


def test_tokens_are_verified_once_per_modification(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = prepare(config(corpus), progress=False).folder
    hashed: list[str] = []
    digest = hashlib.file_digest
    monkeypatch.setattr(
        tokens.hashlib,
        "file_digest",
        lambda file, name: hashed.append(Path(file.name).name) or digest(file, name),
    )
    open_tokens(folder)
    assert hashed == []
    os.utime(folder / "valid.bin")
    open_tokens(folder)
    open_tokens(folder)
    assert hashed == ["valid.bin"]
    (folder / "verified.json").write_text("[")
    open_tokens(folder)
    assert len(hashed) == 4


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format": 99}, "not of token format 2"),
        ({"splits": {}}, "checksum is wrong"),
        ({"vocab": {"kind": "runes"}}, "checksum is wrong"),
        ({"sha256": None}, "checksum is wrong"),
    ],
)
def test_a_damaged_manifest_is_refused(corpus: Path, change: dict[str, Any], reason: str) -> None:
    folder = prepare(config(corpus), progress=False).folder
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps(meta | change))
    with pytest.raises(UserError, match=rf"{reason}; delete the folder .* to prepare it again"):
        open_tokens(folder)


def test_a_negative_number_of_bytes_is_refused(corpus: Path) -> None:
    folder = prepare(config(corpus), progress=False).folder
    meta = json.loads((folder / "meta.json").read_text())
    meta["splits"]["test"]["bytes"] = -5
    (folder / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(UserError, match=r"meta\.json is damaged"):
        open_tokens(folder)


def test_a_folder_without_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"meta\.json is missing; delete the folder"):
        open_tokens(tmp_path)


@pytest.mark.parametrize("kind", ["characters", "words", "pieces"])
def test_a_binary_file_needs_the_bytes_vocabulary(corpus: Path, kind: Any) -> None:
    corpus.write_bytes(TEXT + b"\0")
    with pytest.raises(UserError, match=r"NUL bytes.*vocab=bytes"):
        prepare(config(corpus, vocab=kind), progress=False)
    assert prepare(config(corpus), progress=False).split("test").ids[-1] == 0


def test_bad_settings_and_names_are_refused(corpus: Path) -> None:
    with pytest.raises(UserError, match=r"data\.vocab_size is for pieces"):
        prepare(config(corpus, vocab_size=300), progress=False)
    with pytest.raises(UserError, match="unknown split 'vaild'; did you mean 'valid'"):
        prepare(config(corpus), progress=False).split("vaild")


def test_text_in_memory_becomes_a_split() -> None:
    split = split_from_text(b"two words\n", ByteVocab())
    assert (split.ids.tolist(), split.size_bytes) == (list(b"two words\n"), 10)
    assert (split.words, split.start) == (0, 10)
    with pytest.raises(UserError, match="empty"):
        split_from_text(b"", ByteVocab())


@pytest.mark.parametrize("kind", ["bytes", "symbols", "characters"])
def test_newlines_can_be_dropped_from_a_split(kind: str) -> None:
    vocab = train_vocab(kind, TEXT)
    split = drop_newlines(split_from_text(TEXT, vocab), vocab)
    assert vocab.decode(split.ids) == TEXT.replace(b"\n", b"")
    assert split.size_bytes == split.ids.size


def test_newlines_cannot_be_dropped_from_words() -> None:
    vocab = train_vocab("words", TEXT)
    with pytest.raises(UserError, match="no-newlines protocol"):
        drop_newlines(split_from_text(TEXT, vocab), vocab)


def test_dropping_newlines_without_any_returns_the_same_split() -> None:
    vocab = train_vocab("symbols", b"a b")
    split = split_from_text(b"b a", vocab)
    assert drop_newlines(split, vocab) is split


def test_a_truncated_split_ends_with_a_whole_token() -> None:
    vocab = train_vocab("characters", "aé\n".encode())
    split = split_from_text("aéa\na".encode(), vocab)
    cut = truncate_split(split, 4, vocab)
    assert vocab.decode(cut.ids) == "aéa".encode()
    assert (cut.size_bytes, cut.words) == (4, 0)
    assert vocab.decode(truncate_split(split, 2, vocab).ids) == b"a"
    assert truncate_split(split, 6, vocab) is split
    with pytest.raises(UserError, match="no whole token"):
        truncate_split(split, 0, vocab)


def test_the_bytes_of_a_truncated_split_are_those_of_the_original_text() -> None:
    vocab = train_vocab("words", b"a bb\n")
    original = b"a  unknown\tbb\n\nanother bb "
    split = split_from_text(original, vocab)
    cut = truncate_split(split, 14, vocab)
    assert vocab.decode(cut.ids) == b"a <unk> bb\n"
    assert (cut.size_bytes, cut.words) == (14, 4)
    assert truncate_split(split, 13, vocab).size_bytes == 13
    assert truncate_split(split, 12, vocab).size_bytes == 10
    assert truncate_split(cut, 10, vocab).ids.tolist() == cut.ids[:2].tolist()
    assert split.size_bytes == len(original)


@pytest.mark.filterwarnings("ignore:builtin type")
def test_pieces_of_folded_text_are_cut_after_a_sentence_of_the_original(tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece")
    original = "The  \uff23at sat.\nThe DOG sat \u00bd.\n".encode() * 60
    (tmp_path / "text").write_bytes(original)
    settings = config(tmp_path / "text", vocab="par-pieces", vocab_size=24)
    found = prepare(settings, progress=False)
    split = found.split("train")
    cut = truncate_split(split, 100, found.vocab)
    assert original[cut.size_bytes - 1 : cut.size_bytes + 1] == b".\n"
    assert 100 - 40 < cut.size_bytes <= 100
    np.testing.assert_array_equal(cut.ids, found.vocab.encode(original[: cut.size_bytes]))
    assert cut.words == 0


def test_the_offset_of_a_wrong_byte_counts_from_the_beginning_of_the_file(corpus: Path) -> None:
    corpus.write_bytes(TEXT[:-1] + b"\xff")
    for kind in ("characters", "words"):
        with pytest.raises(UserError, match=f"byte 0xff at offset {len(TEXT) - 1:,}"):
            prepare(config(corpus, vocab=kind), progress=False)


@pytest.mark.filterwarnings("ignore:builtin type")
@pytest.mark.parametrize("kind", [*KINDS, "par-pieces"])
def test_tokens_do_not_depend_on_the_size_of_the_chunks(
    corpus: Path, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "pieces" in kind:
        pytest.importorskip("sentencepiece")
    size = {"pieces": 290, "par-pieces": 25}.get(kind)
    settings = config(corpus, vocab=kind, vocab_size=size)
    whole = prepare(settings, progress=False)
    monkeypatch.setenv("SPARING_HOME", os.environ["SPARING_HOME"] + "-2")
    monkeypatch.setattr(text_module.split_chunks, "__defaults__", (100,))
    parts = prepare(settings, progress=False)
    assert parts.manifest == whole.manifest


def test_the_default_corpus_is_pythons_own_library(monkeypatch: pytest.MonkeyPatch) -> None:
    first = prepare(DataConfig(), progress=False)
    assert prepare(DataConfig(), progress=False).folder == first.folder
    assert first.split("train").ids.size > 1_000_000
    assert first.vocab.decode(first.split("test").ids[:8]) == b"# file: "
    content = first.manifest["splits"]["train"]["text_sha256"]
    monkeypatch.setenv("SPARING_HOME", os.environ["SPARING_HOME"] + "-2")
    second = prepare(DataConfig(), progress=False)
    assert second.folder != first.folder
    assert second.manifest["splits"]["train"]["text_sha256"] == content


def test_the_no_newlines_protocol_counts_as_transformer_xl_does(
    enwik8: dict[str, bytes],
) -> None:
    split = drop_newlines(split_from_text(enwik8["test"], ByteVocab()), ByteVocab())
    assert split.ids.size == split.size_bytes == 4_943_417


@pytest.mark.soak
def test_enwik8_is_prepared_end_to_end(shared_data: Path) -> None:
    settings = DataConfig(corpus="enwik8", vocab="symbols", newlines=False)
    found = prepare(settings, shared_data / "enwik8.xz", progress=False)
    assert found.vocab.size == 204
    assert [found.split(name).ids.size for name in ("train", "valid", "test")] == [
        88_982_818,
        4_945_742,
        4_943_417,
    ]
    assert prepare(settings, progress=False).folder == found.folder


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:builtin type")
def test_wikitext_2_gives_about_as_many_pieces_as_the_original_par(shared_data: Path) -> None:
    settings = DataConfig(corpus="wikitext-2", vocab="par-pieces")
    found = prepare(settings, shared_data, progress=False)
    assert found.vocab.size == 12_000
    valid = found.split("valid")
    assert valid.words == 217_646
    # The original's files hold 314,886; an older SentencePiece splits `<unk>` differently.
    assert valid.ids.size == pytest.approx(314_886, rel=0.02)
