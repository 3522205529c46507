import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from pathlib import Path

import pytest

from sparing.data.local import unpack
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


def zip_of(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "data",
    [tar_of(FILES), zip_of(FILES), *(pack(tar_of(FILES)) for pack in PACKERS)],
    ids=["tar", "zip", "tar.xz", "tar.gz", "tar.bz2"],
)
def test_archives_are_known_by_their_content(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "named-like-nothing"
    path.write_bytes(data)
    assert unpack(path) == FILES


@pytest.mark.parametrize(
    "data",
    [b"plain", *(pack(b"plain") for pack in PACKERS)],
    # Not the bytes themselves: gzip writes the time of day into them.
    ids=["plain", "xz", "gz", "bz2"],
)
def test_a_single_file_is_its_own_member(tmp_path: Path, data: bytes) -> None:
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


def test_a_bzip2_file_of_nothing_is_known_and_a_text_that_begins_like_one(tmp_path: Path) -> None:
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
def test_an_archive_we_cannot_open_is_not_taken_for_text(
    start: bytes, kind: str, tmp_path: Path
) -> None:
    for data in (start + bytes(99), gzip.compress(start + bytes(99))):
        (tmp_path / "text").write_bytes(data)
        with pytest.raises(UserError, match=f"text is a {kind} archive; unpack it first"):
            unpack(tmp_path / "text")


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.txt is missing"):
        unpack(tmp_path / "nowhere.txt")
    with pytest.raises(UserError, match="is a folder"):
        unpack(tmp_path)
