"""Plain, .xz, .gz, .bz2, .zip and .tar files read in memory, recognised by content, not by name.

Members never reach the disk under their own names, and unsafe names are refused.
"""

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from sparing.errors import UserError

DAMAGE = (
    *(lzma.LZMAError, zlib.error, zipfile.BadZipFile, tarfile.TarError, EOFError),
    # Of gzip and bz2.
    *(OSError, ValueError),
)
BLOCKS = (b"1AY&SY", b"\x17rE8P\x90")
"""What follows the first four bytes of a .bz2 file: its first block, or at once its end."""


FOREIGN = {
    b"\x28\xb5\x2f\xfd": "zstd",
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"Rar!\x1a\x07": "rar",
    b"\x04\x22\x4d\x18": "lz4",
}
"""How archives begin that are not for us to open; as text they would be noise."""


def unpack(path: Path) -> dict[str, bytes]:
    """The regular files inside `path` by name; a file that is no archive is its own member."""
    data = read(path)
    try:
        return _members(path.name, data)
    except DAMAGE as problem:
        raise UserError(f"{path} is a damaged archive: {problem}") from None
    except (RuntimeError, NotImplementedError) as problem:
        raise UserError(f"{path} cannot be unpacked: {problem}") from None


def read(path: Path) -> bytes:
    """The bytes of a file; a UserError when it is missing or not allowed."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path} is missing") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder, not a file") from None
    except PermissionError:
        raise UserError(f"{path} may not be read by this user") from None


def _members(name: str, data: bytes) -> dict[str, bytes]:
    if data.startswith(b"\xfd7zXZ\x00"):
        return _tar_or_plain(name, lzma.decompress(data))
    if data.startswith(b"\x1f\x8b"):
        return _tar_or_plain(name, gzip.decompress(data))
    if data.startswith(b"BZh") and data[4:10] in BLOCKS:
        return _tar_or_plain(name, bz2.decompress(data))
    if data.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            files = [file for file in archive.infolist() if not file.is_dir()]
            return {_safe(file.filename, name): archive.read(file) for file in files}
    return _tar_or_plain(name, data)


def _tar_or_plain(name: str, data: bytes) -> dict[str, bytes]:
    for start, kind in FOREIGN.items():
        if data.startswith(start):
            raise UserError(f"{name} is a {kind} archive; unpack it first")
    if data[257:262] != b"ustar":
        return {PurePosixPath(name).name: data}
    members = {}
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
        for member in archive:
            if member.issym() or member.islnk():
                raise UserError(f"{name} holds a link ({member.name}); refused")
            handle = archive.extractfile(member)
            if handle is not None:
                members[_safe(member.name, name)] = handle.read()
    return members


def _safe(member: str, archive: str) -> str:
    path = PurePosixPath(member.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts:
        raise UserError(f"{archive} holds the unsafe name {member!r}; refused")
    return str(path)
