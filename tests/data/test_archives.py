"""Archives: what is inside, and which are refused."""

import bz2
import gzip
import io
import lzma
import tarfile
import warnings
import zipfile
from pathlib import Path
from random import Random

import pytest
from tests.data.conftest import tar_of, zip_of

from sparing.data import archives
from sparing.data.archives import unpack
from sparing.data.textfile import Unpacking, open_text
from sparing.errors import UserError

FILES = {"a.txt": b"first\n", "folder/b.txt": b"second\n"}


def lzma_alone(data: bytes) -> bytes:
    return lzma.compress(data, lzma.FORMAT_ALONE)


PACKERS = (lzma.compress, lzma_alone, gzip.compress, bz2.compress)


def v7_tar_of(files: dict[str, bytes]) -> bytes:
    """As `tar --format=v7` writes it: no header says `ustar`."""
    parts = []
    for name, data in files.items():
        member = tarfile.TarInfo(name)
        member.size = len(data)
        header = bytearray(member.tobuf(tarfile.USTAR_FORMAT))
        header[257:] = bytes(255)
        header[148:156] = b"%06o\0 " % tarfile.calc_chksums(bytes(header))[0]
        parts += [bytes(header), data, bytes(-len(data) % 512)]
    return b"".join(parts) + bytes(1024)


def unpacked(path: Path) -> dict[str, bytes]:
    return {name: bytes(text) for name, text in unpack(path).items()}


@pytest.mark.parametrize(
    "data",
    [tar_of(FILES), v7_tar_of(FILES), zip_of(FILES), *(pack(tar_of(FILES)) for pack in PACKERS)],
    ids=["tar", "v7", "zip", "tar.xz", "tar.lzma", "tar.gz", "tar.bz2"],
)
def test_archives_are_recognised_by_content(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "named-like-nothing"
    path.write_bytes(data)
    assert unpacked(path) == FILES


@pytest.mark.parametrize(
    "data",
    [b"plain", *(pack(b"plain") for pack in PACKERS)],
    # Not the bytes themselves: gzip writes the time of day into them.
    ids=["plain", "xz", "lzma", "gz", "bz2"],
)
def test_a_plain_file_is_its_only_member(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "text.bin"
    path.write_bytes(data)
    assert unpacked(path) == {"text.bin": b"plain"}


@pytest.mark.parametrize("name", ["../evil.txt", "/etc/evil.txt", "a/../../evil.txt", "..\\evil"])
@pytest.mark.parametrize("pack", [tar_of, zip_of])
def test_names_that_leave_the_folder_are_refused(tmp_path: Path, pack, name: str) -> None:
    path = tmp_path / "traversal"
    path.write_bytes(pack({name: b"x"}))
    with pytest.raises(UserError, match="unsafe name"):
        unpack(path)
    assert {found.name for found in tmp_path.iterdir()} <= {"traversal", "sparing-home"}


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
    ids=["zip", "xz", "lzma", "gz", "bz2"],
)
def test_a_truncated_archive_is_refused_in_one_line(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "cut"
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(UserError, match="damaged archive") as caught:
        unpack(path)
    assert "\n" not in str(caught.value)


END = tar_of(FILES).rindex(b"second\n") + 512
"""Where the members of a tar end."""


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (tar_of(FILES).replace(b"folder/b", b"folder/c"), "one of its headers is wrong"),
        (tar_of(FILES)[:1024], "it ends too early"),
        (tar_of(FILES)[:1224], "it ends too early"),
        (tar_of(FILES)[:END], "it ends too early"),
        (tar_of(FILES)[: END + 512], "it ends too early"),
        (tar_of(FILES) + b"junk", "something else follows its end"),
        (tar_of(FILES) + tar_of({"c.txt": b"third"}), "something else follows its end"),
        (tar_of(FILES)[: END + 512] + b"junk" * 300, "something else follows its end"),
    ],
    ids=["header", "member", "inside a header", "no end", "half an end", "junk", "two", "soon"],
)
def test_a_tar_that_is_damaged_or_does_not_end_properly_is_refused(
    tmp_path: Path, data: bytes, reason: str
) -> None:
    (tmp_path / "text").write_bytes(data)
    with pytest.raises(UserError, match=f"text is a damaged archive: {reason}"):
        unpack(tmp_path / "text")


def test_zeros_after_the_end_of_a_tar_are_padding(tmp_path: Path) -> None:
    for end in (1024, 1536, 10240, 3 << 20):
        (tmp_path / "text").write_bytes(tar_of(FILES)[:END] + bytes(end))
        assert unpacked(tmp_path / "text") == FILES


def test_a_text_with_the_checksum_of_a_tar_header_remains_a_text(tmp_path: Path) -> None:
    text = bytearray(b"0" * 512)
    text[148:156] = b"%08o" % (504 * ord("0") + 8 * ord(" "))
    tarfile.TarInfo.frombuf(bytes(text), "utf-8", "strict")
    (tmp_path / "digits").write_bytes(text)
    assert unpacked(tmp_path / "digits") == {"digits": bytes(text)}


def with_comment(data: bytes, comment: bytes, *, claimed: int | None = None) -> bytes:
    size = len(comment) if claimed is None else claimed
    return data[:-2] + size.to_bytes(2, "little") + comment


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (zip_of(FILES) + b"junk" * 50, "something else follows its end"),
        (with_comment(zip_of(FILES), b"comment") + b"junk", "something else follows its end"),
        (with_comment(zip_of(FILES), b"comm", claimed=7), "it ends too early"),
        (zip_of(FILES) + zip_of({"c.txt": b"third"}), "something else comes before it"),
        (b"PK\3\4" + zip_of(FILES), "something else comes before it"),
        (b"PK\3\4" + zip_of({}), "something else comes before it"),
    ],
    ids=["junk", "junk after a comment", "half a comment", "two", "prefix", "prefix of none"],
)
def test_a_zip_must_be_all_of_its_file(tmp_path: Path, data: bytes, reason: str) -> None:
    (tmp_path / "text").write_bytes(data)
    with pytest.raises(UserError, match=f"text is a damaged archive: {reason}"):
        unpack(tmp_path / "text")


def test_a_zip_may_have_a_comment_or_no_files(tmp_path: Path) -> None:
    for data, inside in ((with_comment(zip_of(FILES), b"comment"), FILES), (zip_of({}), {})):
        (tmp_path / "text").write_bytes(data)
        assert unpacked(tmp_path / "text") == inside


def test_an_empty_bzip2_file_and_a_text_with_the_same_first_bytes(tmp_path: Path) -> None:
    path = tmp_path / "text"
    for data, inside in ((bz2.compress(b""), b""), (b"BZhang was here", b"BZhang was here")):
        path.write_bytes(data)
        assert unpacked(path) == {"text": inside}


@pytest.mark.parametrize(
    ("start", "kind"),
    [
        (b"7z\xbc\xaf\x27\x1c\x00\x04", "7z"),
        (b"Rar!\x1a\x07\x01\x00", "rar"),
        (b"\x04\x22\x4d\x18\x64", "lz4"),
        (b"\x1f\x9d\x90", "compress"),
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


@pytest.mark.parametrize("pack", PACKERS, ids=["xz", "lzma", "gz", "bz2"])
@pytest.mark.parametrize("junk", [b"j", b"junk after the end", b"\0\0\0\0junk"])
def test_other_bytes_after_the_end_of_an_archive_are_refused(
    tmp_path: Path, pack, junk: bytes
) -> None:
    path = tmp_path / "text"
    path.write_bytes(pack(b"plain") + junk)
    with pytest.raises(UserError, match="text is a damaged archive: something else follows its"):
        unpack(path)


@pytest.mark.parametrize("pack", [lzma.compress, gzip.compress, bz2.compress])
def test_several_streams_and_padding_are_one_text(
    tmp_path: Path, pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "BLOCK_BYTES", 100)
    text = bytes(range(256)) * 20
    path = tmp_path / "text"
    path.write_bytes(pack(text) + pack(b"") + pack(text) + bytes(8))
    assert unpacked(path) == {"text": text + text}


def test_zstd_frames_of_any_kind_are_one_text(tmp_path: Path) -> None:
    compress = pytest.importorskip("zstandard").compress
    text, path = bytes(range(256)) * 20_000, tmp_path / "text"
    skipped = b"\x5e\x2a\x4d\x18\x04\0\0\0skip"
    path.write_bytes(skipped + compress(text) + compress(b"") + skipped + compress(text) + bytes(8))
    assert unpacked(path) == {"text": text + text}
    path.write_bytes(compress(tar_of(FILES)))
    assert unpacked(path) == FILES


def test_a_damaged_zstd_file_is_refused_in_one_line(tmp_path: Path) -> None:
    compress = pytest.importorskip("zstandard").compress
    data = compress(b"".join(b"line %d\n" % n for n in range(9000)))
    for damaged, reason in (
        (data[: len(data) // 2], "it ends too early"),
        (data[:-1], "it ends too early"),
        (data[:6] + b"\xff" * 20 + data[26:], "zstd"),
        (data + b"junk", "something else follows its end"),
    ):
        (tmp_path / "text").write_bytes(damaged)
        with pytest.raises(UserError, match=f"text is a damaged archive: .*{reason}") as refused:
            unpack(tmp_path / "text")
        assert "\n" not in str(refused.value)


def test_a_zstd_bomb_is_unpacked_in_small_blocks(tmp_path: Path) -> None:
    path, size_bytes = tmp_path / "bomb", 300_000_000
    path.write_bytes(pytest.importorskip("zstandard").compress(bytes(size_bytes)))
    assert path.stat().st_size < 20_000
    blocks = archives._decompressed(path, open_text(path), path.read_bytes()[:16])
    assert blocks is not None
    sizes = [len(block) for block in blocks]
    assert sum(sizes) == size_bytes
    assert max(sizes) <= 32 << 20
    with pytest.raises(UserError, match="bomb holds more than 1,000,000 bytes of text"):
        unpack(path, Unpacking.of(1_000_000))


def twice(name: str, other: str, *, packed: str) -> bytes:
    """An archive with two files."""
    buffer = io.BytesIO()
    if packed == "zip":
        with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr(name, b"1")
            archive.writestr(other, b"2")
        return buffer.getvalue()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.addfile(tarfile.TarInfo(name))
        tar.addfile(tarfile.TarInfo(other))
    return buffer.getvalue()


@pytest.mark.parametrize("packed", ["zip", "tar"])
@pytest.mark.parametrize("other", ["a/b.txt", "a/./b.txt", "a\\b.txt"])
def test_two_files_of_the_same_name_are_refused(tmp_path: Path, packed: str, other: str) -> None:
    path = tmp_path / "archive"
    path.write_bytes(twice("a/b.txt", other, packed=packed))
    with pytest.raises(UserError, match=r"archive holds two files of the name 'a/b\.txt'; remove"):
        unpack(path)


def test_sparse_files_and_files_without_a_name_are_refused(tmp_path: Path) -> None:
    sparse = tarfile.TarInfo("hole")
    sparse.type = tarfile.GNUTYPE_SPARSE
    header = bytearray(sparse.tobuf(tarfile.GNU_FORMAT))
    header[483:495] = b"77777777777\0"
    header[148:156] = b"%06o\0 " % tarfile.calc_chksums(bytes(header))[0]
    (tmp_path / "sparse.tar").write_bytes(header + bytes(1024))
    with pytest.raises(UserError, match="holds a sparse file"):
        unpack(tmp_path / "sparse.tar")
    data = zip_of({"x": b"data"})
    nameless = data.replace(b"\x01\0\0\0x", b"\0\0\0\0").replace(b"\x01\0", b"\0\0")
    (tmp_path / "nameless.zip").write_bytes(nameless)
    with pytest.raises(UserError, match="nameless"):
        unpack(tmp_path / "nameless.zip")


@pytest.mark.parametrize(
    "data",
    [
        *(pack(bytes(5000)) for pack in PACKERS),
        zip_of({"a": bytes(3000), "b": bytes(2000)}),
        b"x" * 5000,
    ],
    ids=["xz", "lzma", "gz", "bz2", "zip", "plain"],
)
def test_a_text_larger_than_the_limit_is_refused_and_the_limit_named(
    tmp_path: Path, cache: Path, data: bytes
) -> None:
    path = tmp_path / "bomb"
    path.write_bytes(data)
    with pytest.raises(
        UserError,
        match=r"bomb holds more than 4,999 bytes of text \(--max-bytes 4999\).*larger --max-bytes",
    ):
        unpack(path, Unpacking.of(4999))
    assert sum(map(len, unpack(path, Unpacking.of(5000)).values())) == 5000
    assert not cache.exists() or not list(cache.iterdir())


def test_an_archive_of_too_many_files_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "MAX_MEMBERS", 1)
    (tmp_path / "many").write_bytes(tar_of(FILES))
    with pytest.raises(UserError, match="holds more than 1 files; unpack it first"):
        unpack(tmp_path / "many")


def test_an_archive_that_needs_too_much_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "MAX_MEMORY", 1 << 16)
    (tmp_path / "greedy").write_bytes(lzma.compress(b"text"))
    with pytest.raises(UserError, match="greedy is a damaged archive: Memory usage limit"):
        unpack(tmp_path / "greedy")


def mutated(data: bytes, random: Random) -> bytes:
    """The bytes with a few of them changed, removed, repeated or swapped for those of headers."""
    found = bytearray(data)
    for _ in range(random.choice([1, 1, 2, 5, 20])):
        at = random.randrange(len(found) + 1)
        length = random.choice([1, 1, 4, 12, 100])
        match random.randrange(5):
            case 0:
                found[at : at + 1] = random.randbytes(1)
            case 1:
                del found[at : at + length]
            case 2:
                found[at:at] = found[at : at + length]
            case 3:
                found[at : at + length] = random.choice([b"\xff", b"\0", b"7", b"\x80"]) * length
            case 4:
                found[at:at] = random.randbytes(length)
    return bytes(found)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
def test_a_mutated_archive_is_unpacked_or_refused(tmp_path: Path, seed: int) -> None:
    random, path = Random(seed), tmp_path / "mutated"
    text = b"".join(b"a line of %d\n" % number for number in range(300))
    files = {"a.txt": text, "folder/b.txt": text[:99], "c.txt": b""}
    sources = [tar_of(files), zip_of(files), *(pack(tar_of(files)) for pack in PACKERS)]
    refusals = []
    for _ in range(1000):
        path.write_bytes(mutated(random.choice(sources), random))
        try:
            members = unpack(path, Unpacking.of(1 << 20))
        except UserError as problem:
            refusals.append(str(problem))
        else:
            assert sum(len(bytes(member)) for member in members.values()) <= 1 << 20
    assert not [line for line in refusals if "\n" in line]
