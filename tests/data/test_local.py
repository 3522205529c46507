"""Reading files, archives, folders and the standard library."""

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.conftest import tar_of, zip_of

from sparing.data import local
from sparing.data.local import (
    path_fingerprint,
    read_path,
    read_stdlib,
    split_by_bytes,
    split_for_file,
)
from sparing.errors import UserError


@given(st.text(min_size=60, max_size=300))
def test_splitting_keeps_all_bytes_and_whole_characters(text: str) -> None:
    encoded = text.encode("utf-8")
    splits = split_by_bytes(encoded)
    assert list(splits) == ["train", "valid", "test"]
    assert b"".join(splits.values()) == encoded
    for part, share in zip(splits.values(), (0.9, 0.05, 0.05), strict=True):
        part.decode("utf-8")
        assert abs(len(part) - share * len(encoded)) <= 5


def test_a_folder_is_read_as_its_text_files_in_order(tmp_path: Path) -> None:
    for name, data in {
        "b.txt": b"B" * 50,
        "a/z.txt": b"A" * 50,
        "binary.bin": b"\0" * 50,
        ".hidden": b"H" * 50,
        ".git/config": b"G" * 50,
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    assert bytes(read_path(tmp_path)) == b"A" * 50 + b"B" * 50


def test_a_single_file_may_be_compressed_or_binary(tmp_path: Path) -> None:
    (tmp_path / "packed").write_bytes(gzip.compress(b"\0text" * 50))
    assert bytes(read_path(tmp_path / "packed")) == b"\0text" * 50


def test_the_files_of_an_archive_are_joined_in_the_order_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "packed").write_bytes(zip_of({"b": b"B" * 50, "a": b"A" * 50}))
    assert bytes(read_path(tmp_path / "packed")) == b"A" * 50 + b"B" * 50


@pytest.mark.parametrize("pack", [zip_of, tar_of])
def test_hidden_and_binary_files_of_an_archive_are_left_out_as_in_a_folder(
    tmp_path: Path, pack: Callable[[dict[str, bytes]], bytes]
) -> None:
    files = {
        "./b.txt": b"B" * 50,
        "a.txt": b"A" * 50,
        "picture.png": bytes(range(256)),
        ".git/config": b"G" * 50,
        "__MACOSX/._a.txt": b"\0\5\x16\7" + bytes(50),
        "records.jsonl": b'{"text": "R"}\n',
    }
    (tmp_path / "packed").write_bytes(pack(files))
    assert bytes(read_path(tmp_path / "packed")) == b"A" * 50 + b"B" * 50 + b"R\n"


def test_the_only_visible_file_of_an_archive_may_be_binary(tmp_path: Path) -> None:
    files = {"a.bin": b"\0text" * 50, "__MACOSX/._a.bin": bytes(50)}
    (tmp_path / "packed").write_bytes(zip_of(files))
    assert bytes(read_path(tmp_path / "packed")) == b"\0text" * 50
    for name in (".a.bin", "__MACOSX/._a.bin"):
        (tmp_path / "packed").write_bytes(zip_of({name: b"hidden" * 50}))
        assert bytes(read_path(tmp_path / "packed")) == b"hidden" * 50


def test_special_files_in_a_folder_are_left_out(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text").write_bytes(b"text" * 50)
    assert bytes(read_path(tmp_path)) == b"text" * 50


def test_unusable_files_are_refused_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "one").write_bytes(b"x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "binary").write_bytes(b"\0" * 500)
    for name, reason in {
        "nowhere": "is missing",
        "empty": "holds no text",
        "one": "holds 1 byte of text; a corpus needs at least 100",
        "folder": "holds no text",
    }.items():
        with pytest.raises(UserError, match=reason):
            read_path(tmp_path / name)
    with pytest.raises(UserError, match="/dev/zero is a device, not a file"):
        read_path(Path("/dev/zero"))


def test_a_fingerprint_changes_with_the_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one")
    before = path_fingerprint(tmp_path)
    assert path_fingerprint(tmp_path) == before
    (tmp_path / "a.txt").write_bytes(b"three")
    assert path_fingerprint(tmp_path) != before
    (tmp_path / "a.txt").write_bytes(b"one")
    (tmp_path / "b.txt").write_bytes(b"two")
    assert path_fingerprint(tmp_path) != before


def test_the_standard_library_is_split_by_file_and_reproducibly() -> None:
    splits = read_stdlib()
    assert splits == read_stdlib()
    total = sum(map(len, splits.values()))
    assert total > 2_000_000
    assert 0.8 < len(splits["train"]) / total < 0.97
    for split, text in splits.items():
        names = [line[8:] for line in text.splitlines() if line.startswith(b"# file: ")]
        assert {split_for_file(name.decode()) for name in names} == {split}
        assert names == sorted(names)
        assert not any(b"/tests/" in b"/" + name or b"site-packages" in name for name in names)
        text.decode("utf-8")


def test_the_split_of_a_library_file_depends_on_its_name_only() -> None:
    assert [split_for_file(name) for name in ("ast.py", "json/decoder.py")] == ["train", "valid"]


def test_an_interpreter_without_source_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "stdlib_folder", lambda: tmp_path)
    with pytest.raises(UserError, match="no Python source"):
        read_stdlib()
