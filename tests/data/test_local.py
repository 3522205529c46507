"""Reading files, archives, folders and the standard library."""

import bz2
import gzip
import io
import lzma
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.conftest import zip_of

from sparing.data import local
from sparing.data.local import (
    path_fingerprint,
    read_path,
    read_stdlib,
    split_by_bytes,
    split_for_file,
    unpack,
)
from sparing.errors import UserError

FILES = {"a.txt": b"first\n", "folder/b.txt": b"second\n"}
PACKERS = (lzma.compress, gzip.compress, bz2.compress)


def tar_of(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


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
    assert read_path(tmp_path) == b"A" * 50 + b"B" * 50


def test_a_single_file_may_be_compressed_or_binary(tmp_path: Path) -> None:
    (tmp_path / "packed").write_bytes(gzip.compress(b"\0text" * 50))
    assert read_path(tmp_path / "packed") == b"\0text" * 50


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
    with pytest.raises(UserError, match="neither a file nor a folder"):
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


@pytest.mark.parametrize(
    "data",
    [tar_of(FILES), zip_of(FILES), *(pack(tar_of(FILES)) for pack in PACKERS)],
    ids=["tar", "zip", "tar.xz", "tar.gz", "tar.bz2"],
)
def test_archives_are_recognised_by_content(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "named-like-nothing"
    path.write_bytes(data)
    assert unpack(path) == FILES


@pytest.mark.parametrize(
    "data",
    [b"plain", *(pack(b"plain") for pack in PACKERS)],
    # Not the bytes themselves: gzip writes the time of day into them.
    ids=["plain", "xz", "gz", "bz2"],
)
def test_a_plain_file_is_its_only_member(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "text.bin"
    path.write_bytes(data)
    assert unpack(path) == {"text.bin": b"plain"}


@pytest.mark.parametrize("name", ["../evil.txt", "/etc/evil.txt", "a/../../evil.txt", "..\\evil"])
@pytest.mark.parametrize("pack", [tar_of, zip_of])
def test_names_that_leave_the_folder_are_refused(tmp_path: Path, pack, name: str) -> None:
    path = tmp_path / "traversal"
    path.write_bytes(pack({name: b"x"}))
    with pytest.raises(UserError, match="unsafe name"):
        unpack(path)
    assert [found.name for found in tmp_path.iterdir()] == ["traversal"]


def test_links_in_an_archive_are_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo("link")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(member)
    path = tmp_path / "links.tar"
    path.write_bytes(buffer.getvalue())
    with pytest.raises(UserError, match=r"holds a link \(link\)"):
        unpack(path)


@pytest.mark.parametrize(
    "data",
    [zip_of(FILES), *(pack(bytes(range(256)) * 9) for pack in PACKERS)],
    ids=["zip", "xz", "gz", "bz2"],
)
def test_a_truncated_archive_is_refused_in_one_line(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "cut"
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(UserError, match="damaged archive") as caught:
        unpack(path)
    assert "\n" not in str(caught.value)


def test_an_empty_bzip2_file_and_a_text_with_the_same_first_bytes(tmp_path: Path) -> None:
    path = tmp_path / "text"
    for data, inside in ((bz2.compress(b""), b""), (b"BZhang was here", b"BZhang was here")):
        path.write_bytes(data)
        assert unpack(path) == {"text": inside}


@pytest.mark.parametrize(
    ("start", "kind"),
    [
        (b"\x28\xb5\x2f\xfd\x24\x05", "zstd"),
        (b"7z\xbc\xaf\x27\x1c\x00\x04", "7z"),
        (b"Rar!\x1a\x07\x01\x00", "rar"),
        (b"\x04\x22\x4d\x18\x64", "lz4"),
    ],
)
def test_an_unsupported_archive_is_not_taken_for_text(
    start: bytes, kind: str, tmp_path: Path
) -> None:
    for data in (start + bytes(99), gzip.compress(start + bytes(99))):
        (tmp_path / "text").write_bytes(data)
        with pytest.raises(UserError, match=f"text is a {kind} archive; unpack it first"):
            unpack(tmp_path / "text")


def test_a_missing_file_and_a_folder_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.txt is missing"):
        unpack(tmp_path / "nowhere.txt")
    with pytest.raises(UserError, match="is a folder"):
        unpack(tmp_path)
