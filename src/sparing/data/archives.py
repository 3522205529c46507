"""Archives (.xz, .lzma, .gz, .bz2, .zst, .zip, .tar), recognised by content and unpacked on disk.

What is in memory at a time is bounded, and so is what is written to disk.
"""

import bz2
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from sparing.data.text import Text, split_blocks
from sparing.data.textfile import Scratch, TextFile, Unpacking, open_text
from sparing.device import limit_to_free_ram
from sparing.errors import UserError

BLOCK_BYTES = 1 << 20
MAX_MEMORY = 1 << 28
"""Memory that unpacking an .xz may take; `xz -9` needs a quarter of it."""
MAX_MEMBERS = 1_000_000
ARCHIVE_ERRORS = (
    *(lzma.LZMAError, zlib.error, zipfile.BadZipFile, tarfile.TarError, EOFError),
    # Raised by gzip and bz2, and for sizes that no machine can hold.
    *(OSError, ValueError, OverflowError),
)
BZ2_BLOCKS = (b"1AY&SY", b"\x17rE8P\x90")
"""Bytes 4 to 10 of a .bz2 file: the start of its first block, or its end if it is empty."""
ZSTD = b"\x28\xb5\x2f\xfd"
ZSTD_FRAMES = (ZSTD, *(bytes((first, 0x2A, 0x4D, 0x18)) for first in range(0x50, 0x60)))
"""First bytes of the frames of a .zst file: the usual one, and those that are to be skipped."""
ZSTD_STEP = 1 << 10
"""Bytes decompressed at a time, from which at most 32 MiB can come."""
ZIP_END_BYTES = 22
"""Size of the last record of a zip, without the comment that may end it."""
UNSUPPORTED_ARCHIVES = {
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"Rar!\x1a\x07": "rar",
    b"\x04\x22\x4d\x18": "lz4",
    b"LZIP\x01": "lzip",
    b"\x1f\x9d": "compress",
}
"""First bytes of archives that we cannot open and that must not be taken for text."""


def unpack(path: Path, how: Unpacking | None = None) -> dict[str, Text]:
    """Return the regular files inside an archive by name; any other file is its only member.

    Members are unpacked into nameless files, and unsafe names are refused.
    """
    how = how or Unpacking.of()
    text = open_text(path)
    how.check(path, len(text))
    try:
        with limit_to_free_ram():
            return _read_members(path, text, how)
    except ARCHIVE_ERRORS as problem:
        if isinstance(problem, OSError) and problem.filename is not None:
            # Of the disk, not of the archive.
            raise
        raise UserError(f"{path} is a damaged archive: {problem}") from None
    except MemoryError:
        raise UserError(f"{path} cannot be unpacked in the memory that is free") from None
    except RuntimeError as problem:
        # Of a zip with a password, or with a feature that the library lacks.
        raise UserError(f"{path} cannot be unpacked: {problem}") from None


def _read_members(path: Path, text: TextFile, how: Unpacking) -> dict[str, Text]:
    head = bytes(text[:16])
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _read_zip(path, text, how)
    if (blocks := _decompressed(path, text, head)) is not None:
        with Scratch(path, how) as scratch:
            text = scratch.write(blocks)
    return _read_tar_or_plain(path, text)


def _decompressed(path: Path, text: TextFile, head: bytes) -> Iterator[bytes] | None:
    """The content of a compressed file; None if it is not compressed."""
    if head.startswith(b"\xfd7zXZ\x00"):
        return _decompress(text, head[:6], partial(lzma.LZMADecompressor, memlimit=MAX_MEMORY))
    if _is_lzma(head):
        return _decompress(text, head[:3], partial(lzma.LZMADecompressor, memlimit=MAX_MEMORY))
    if head.startswith(b"BZh") and head[4:10] in BZ2_BLOCKS:
        return _decompress(text, head[:3], bz2.BZ2Decompressor)
    if head.startswith(b"\x1f\x8b"):
        return _decompress(text, head[:2], _GzipDecoder)
    if head.startswith(ZSTD_FRAMES):
        return _decompress(text, ZSTD_FRAMES, _zstd_decoder(path))
    return None


def _is_lzma(head: bytes) -> bool:
    """Whether a file starts as .lzma files do: usual settings, and a size below 1 TiB or none."""
    size = head[5:13]
    return head.startswith(b"]\0\0") and (size == b"\xff" * 8 or size[5:] == bytes(3))


def _decompress(
    text: Text, magic: bytes | tuple[bytes, ...], new_decoder: Callable[[], Any]
) -> Iterator[bytes]:
    """Decompress one stream after the other; only padding may follow the last one."""
    decoder, starts = None, (magic,) if isinstance(magic, bytes) else magic
    for block in split_blocks(text):
        rest = block
        while rest := rest if decoder else rest.lstrip(b"\0"):
            if decoder is None:
                if not any(rest.startswith(each) or each.startswith(rest) for each in starts):
                    raise ValueError("something else follows its end")
                decoder = new_decoder()
            yield decoder.decompress(rest, BLOCK_BYTES)
            while not decoder.eof and not decoder.needs_input:
                yield decoder.decompress(b"", BLOCK_BYTES)
            rest, decoder = decoder.unused_data, None if decoder.eof else decoder
    if decoder is not None:
        raise EOFError("it ends too early")


class _GzipDecoder:
    """The decoder of zlib, used like those of lzma and bz2."""

    def __init__(self) -> None:
        self._decoder = zlib.decompressobj(wbits=31)
        self.needs_input = True

    def decompress(self, data: bytes, most: int) -> bytes:
        """Decompress what is left of earlier data, and `data`, to at most `most` bytes."""
        found = self._decoder.decompress(self._decoder.unconsumed_tail + data, most)
        self.needs_input = len(found) < most
        return found

    @property
    def eof(self) -> bool:
        """Whether the end of the stream has been reached."""
        return self._decoder.eof

    @property
    def unused_data(self) -> bytes:
        """What follows the stream."""
        return self._decoder.unused_data


class _ZstdDecoder:
    """A decoder of zstandard, used like those of lzma and bz2."""

    def __init__(self, library: Any) -> None:
        self._error = library.ZstdError
        self._decoder = library.ZstdDecompressor(max_window_size=MAX_MEMORY).decompressobj()
        self._given = memoryview(b"")

    def decompress(self, data: bytes, _most: int) -> bytes:
        """Decompress the next step of earlier data, or of `data`."""
        # The library has no limit for what comes out, so there is one for what goes in.
        self._given = memoryview(data) if data else self._given
        step, self._given = self._given[:ZSTD_STEP], self._given[ZSTD_STEP:]
        try:
            found: bytes = self._decoder.decompress(step)
        except self._error as problem:
            raise ValueError(str(problem)) from None
        return found

    @property
    def needs_input(self) -> bool:
        """Whether all that was given has been decompressed."""
        return not self._given

    @property
    def eof(self) -> bool:
        """Whether the end of the frame has been reached."""
        return bool(self._decoder.eof)

    @property
    def unused_data(self) -> bytes:
        """What follows the frame."""
        return bytes(self._decoder.unused_data) + bytes(self._given)


def _zstd_decoder(path: Path) -> Callable[[], _ZstdDecoder]:
    try:
        import zstandard
    except ImportError:
        raise UserError(f"{path} needs zstandard: pip install 'sparing[data]'") from None
    return partial(_ZstdDecoder, zstandard)


def _read_zip(path: Path, text: TextFile, how: Unpacking) -> dict[str, Text]:
    members: dict[str, Text] = {}
    with (
        Scratch(path, how) as scratch,
        text.open() as handle,
        zipfile.ZipFile(handle) as archive,
    ):
        for file in archive.infolist():
            if file.filename.endswith("/"):
                continue
            if file.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise UserError(f"{path} is a zip of an unusual kind; unpack it first")
            how.check(path, scratch.size_bytes + file.file_size)
            with archive.open(file) as content:
                blocks = iter(partial(content.read, BLOCK_BYTES), b"")
                _add_member(members, path, file.filename, scratch.write(blocks))
        _check_zip_is_all(archive, text)
    return members


def _check_zip_is_all(archive: zipfile.ZipFile, text: TextFile) -> None:
    """Refuse a zip before or after which there is something else: the library skips both."""
    first = min((file.header_offset for file in archive.infolist()), default=archive.start_dir)
    if first:
        raise ValueError("something else comes before it")
    end = bytes(text[-ZIP_END_BYTES - len(archive.comment) :][:ZIP_END_BYTES])
    if not end.startswith(b"PK\x05\x06"):
        raise ValueError("something else follows its end")
    if int.from_bytes(end[-2:], "little") != len(archive.comment):
        raise EOFError("it ends too early")


def _read_tar_or_plain(path: Path, text: TextFile) -> dict[str, Text]:
    head = bytes(text[:512])
    for start, kind in UNSUPPORTED_ARCHIVES.items():
        if head.startswith(start):
            raise UserError(f"{path.name} is a {kind} archive; unpack it first")
    return _read_tar(path, text) if _is_tar(head) else {path.name: text}


def _is_tar(head: bytes) -> bool:
    """Whether a file starts as tars do; the oldest kind shows it by its checksum alone."""
    if head[257:262] == b"ustar":
        return True
    try:
        tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
    except tarfile.TarError:
        return False
    # No header is without a zero, and no text has one.
    return b"\0" in head


def _read_tar(path: Path, text: TextFile) -> dict[str, Text]:
    members: dict[str, Text] = {}
    with text.open() as handle, tarfile.open(fileobj=handle, mode="r:") as archive:
        for member in archive:
            # The library would keep them all.
            archive.members = []  # type: ignore[attr-defined]  # missing in the stubs
            if member.issym() or member.islnk() or member.issparse():
                kind = "sparse file" if member.issparse() else "link"
                raise UserError(f"{path} holds a {kind} ({member.name}), which is not allowed")
            end = member.offset_data + member.size
            if member.isreg() and end > len(text):
                raise EOFError("it ends too early")
            if member.isreg():
                _add_member(members, path, member.name, text[member.offset_data : end])
        _check_tar_end(text[archive.offset :])
    return members


def _check_tar_end(rest: TextFile) -> None:
    """Refuse what follows the members unless it is two empty blocks and padding.

    The library takes whatever is not a header for the end.
    """
    first = bytes(rest[: tarfile.BLOCKSIZE])
    if len(first) == tarfile.BLOCKSIZE and any(first):
        raise ValueError("one of its headers is wrong")
    if len(rest) < 2 * tarfile.BLOCKSIZE:
        raise EOFError("it ends too early")
    if any(block.strip(b"\0") for block in split_blocks(rest)):
        raise ValueError("something else follows its end")


def _add_member(members: dict[str, Text], archive: Path, name: str, text: Text) -> None:
    path = PurePosixPath(name.replace("\\", "/"))
    if not name or path.is_absolute() or ".." in path.parts:
        raise UserError(f"{archive} holds the unsafe name {name!r}, which is not allowed")
    if str(path) in members:
        raise UserError(f"{archive} holds two files of the name {str(path)!r}; remove one of them")
    if len(members) == MAX_MEMBERS:
        raise UserError(f"{archive} holds more than {MAX_MEMBERS:,} files; unpack it first")
    members[str(path)] = text
