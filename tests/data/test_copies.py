"""Copies of a corpus, whatever they are packed in, become its splits or are refused."""

import lzma
from pathlib import Path

import pytest
from tests.data.conftest import PARTS, TEXT, zip_of

from sparing.data.local import SPLITS
from sparing.data.splits import fingerprint, read_splits
from sparing.errors import UserError


@pytest.mark.parametrize(
    "data",
    [TEXT, lzma.compress(TEXT), zip_of({"digits": TEXT, "readme": b"x"})],
    ids=["plain", "xz", "zip"],
)
@pytest.mark.usefixtures("digits")
def test_one_file_is_cut_at_its_offsets(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "copy").write_bytes(data)
    splits = read_splits("digits", tmp_path / "copy")
    assert splits == {"train": TEXT[:80], "valid": TEXT[80:90], "test": TEXT[90:]}


@pytest.mark.parametrize("pattern", ["wiki-v1/wiki.{}.tokens", "{}.txt"])
@pytest.mark.usefixtures("wiki")
def test_member_files_become_splits(tmp_path: Path, pattern: str) -> None:
    archive = zip_of({pattern.format(split): text for split, text in PARTS.items()})
    (tmp_path / "copy").write_bytes(archive)
    assert read_splits("wiki", tmp_path / "copy") == PARTS
    folder = tmp_path / "unpacked"
    folder.mkdir()
    for split, text in PARTS.items():
        (folder / Path(pattern.format(split)).name).write_bytes(text)
    assert read_splits("wiki", folder) == PARTS


@pytest.mark.usefixtures("digits", "wiki")
def test_wrong_copies_are_refused_and_left_alone(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.write_bytes(TEXT[::-1])
    with pytest.raises(UserError, match=r"wrong checksum .* expected sha256:.* found sha256:"):
        read_splits("digits", copy)
    copy.write_bytes(TEXT[:-1])
    with pytest.raises(UserError, match="holds 99 bytes, but digits has 100"):
        read_splits("digits", copy)
    copy.write_bytes(zip_of({"wiki.valid.tokens": PARTS["valid"]}))
    with pytest.raises(UserError, match=r"holds no wiki\.train\.tokens or train\.txt"):
        read_splits("wiki", copy)
    with pytest.raises(UserError, match="is missing"):
        read_splits("digits", tmp_path / "nowhere")
    assert copy.exists()


def test_part_of_text8_has_a_name_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "text8_first_1000").write_bytes(b"a prefix  " * 100)
    with pytest.raises(UserError, match=r"1,000 bytes, but text8 has .*the name text8-prefix"):
        read_splits("text8", tmp_path / "text8_first_1000")
    splits = read_splits("text8-prefix", tmp_path)
    assert [len(splits[split]) for split in SPLITS] == [900, 50, 50]
    with pytest.raises(UserError, match="no public home"):
        fingerprint("text8-prefix")


def test_half_of_wikitext_103_is_refused(shared_data: Path) -> None:
    with pytest.raises(UserError, match=r"holds no wiki\.train\.tokens"):
        read_splits("wikitext-103", shared_data / "wikitext-103-valid-test.tar.xz")
