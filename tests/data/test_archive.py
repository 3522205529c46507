import gzip
import io
import lzma
import tarfile
import zipfile
from pathlib import Path

import pytest

from sparing.data.archive import unpack
from sparing.errors import UserError

FILES = {"a.txt": b"first\n", "folder/b.txt": b"second\n"}


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
    [tar_of(FILES), lzma.compress(tar_of(FILES)), gzip.compress(tar_of(FILES)), zip_of(FILES)],
    ids=["tar", "tar.xz", "tar.gz", "zip"],
)
def test_archives_are_known_by_their_content(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "named-like-nothing"
    path.write_bytes(data)
    assert unpack(path) == FILES


@pytest.mark.parametrize(
    "data",
    [b"plain", lzma.compress(b"plain"), gzip.compress(b"plain")],
    # Not the bytes themselves: gzip writes the time of day into them.
    ids=["plain", "xz", "gz"],
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
    [lzma.compress(b"x" * 999), gzip.compress(bytes(range(256)) * 9), zip_of(FILES)],
    ids=["xz", "gz", "zip"],
)
def test_a_truncated_archive_is_refused_in_one_line(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "cut"
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(UserError, match="damaged archive") as caught:
        unpack(path)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.txt is missing"):
        unpack(tmp_path / "nowhere.txt")
    with pytest.raises(UserError, match="is a folder"):
        unpack(tmp_path)
