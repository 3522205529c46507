"""Text in local files: plain files, archives, folders, and Python's standard library.

Archives (.xz, .gz, .bz2, .zip, .tar) are recognised by content and read in memory.
"""

import bz2
import gzip
import hashlib
import io
import lzma
import os
import platform
import sysconfig
import tarfile
import zipfile
import zlib
from collections.abc import Container, Iterator
from pathlib import Path, PurePosixPath

from sparing.data.corpora import SPLITS
from sparing.data.text import character_boundary
from sparing.errors import UserError
from sparing.units import pluralize

SMALLEST_BYTES = 100
ARCHIVE_ERRORS = (
    *(lzma.LZMAError, zlib.error, zipfile.BadZipFile, tarfile.TarError, EOFError),
    # Raised by gzip and bz2.
    *(OSError, ValueError),
)
BZ2_BLOCKS = (b"1AY&SY", b"\x17rE8P\x90")
"""Bytes 4 to 10 of a .bz2 file: the start of its first block, or its end if it is empty."""
UNSUPPORTED_ARCHIVES = {
    b"\x28\xb5\x2f\xfd": "zstd",
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"Rar!\x1a\x07": "rar",
    b"\x04\x22\x4d\x18": "lz4",
}
"""First bytes of archives that we cannot open and that must not be taken for text."""
SKIPPED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
"""Folders of the standard library that hold tests or third-party packages."""


def read_path(path: Path) -> bytes:
    """Return the text of a file (unpacked if it is an archive) or of all text files of a folder.

    A folder's files are joined in the order of their relative paths; hidden files and binary files
    (those with a NUL byte) are left out. A single binary file is taken as it is.
    """
    if path.is_dir():
        texts = [read_file(file) for file in files_under(path)]
        text = b"".join(text for text in texts if b"\0" not in text)
    elif path.exists() and not path.is_file():
        raise UserError(f"{path} is neither a file nor a folder")
    else:
        members = unpack(path)
        text = b"".join(members[name] for name in sorted(members))
    if not text:
        raise UserError(f"{path} holds no text")
    if len(text) < SMALLEST_BYTES:
        raise UserError(
            f"{path} holds {pluralize(len(text), 'byte')} of text; "
            f"a corpus needs at least {SMALLEST_BYTES}"
        )
    return text


def read_file(path: Path) -> bytes:
    """Return the bytes of a file; raise a UserError if it is missing or not readable."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path} is missing") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder, not a file") from None
    except PermissionError:
        raise UserError(f"no permission to read {path}") from None


def unpack(path: Path) -> dict[str, bytes]:
    """Return the regular files inside an archive by name; any other file is its only member.

    Nothing is written to disk, and unsafe names are refused.
    """
    data = read_file(path)
    try:
        return _read_members(path.name, data)
    except ARCHIVE_ERRORS as problem:
        raise UserError(f"{path} is a damaged archive: {problem}") from None
    except (RuntimeError, NotImplementedError) as problem:
        raise UserError(f"{path} cannot be unpacked: {problem}") from None


def _read_members(name: str, data: bytes) -> dict[str, bytes]:
    if data.startswith(b"\xfd7zXZ\x00"):
        return _read_tar_or_plain(name, lzma.decompress(data))
    if data.startswith(b"\x1f\x8b"):
        return _read_tar_or_plain(name, gzip.decompress(data))
    if data.startswith(b"BZh") and data[4:10] in BZ2_BLOCKS:
        return _read_tar_or_plain(name, bz2.decompress(data))
    if data.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            files = [file for file in archive.infolist() if not file.is_dir()]
            return {_check_name(file.filename, name): archive.read(file) for file in files}
    return _read_tar_or_plain(name, data)


def _read_tar_or_plain(name: str, data: bytes) -> dict[str, bytes]:
    for start, kind in UNSUPPORTED_ARCHIVES.items():
        if data.startswith(start):
            raise UserError(f"{name} is a {kind} archive; unpack it first")
    if data[257:262] != b"ustar":
        return {PurePosixPath(name).name: data}
    members = {}
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
        for member in archive:
            if member.issym() or member.islnk():
                raise UserError(f"{name} holds a link ({member.name}), which is not allowed")
            handle = archive.extractfile(member)
            if handle is not None:
                members[_check_name(member.name, name)] = handle.read()
    return members


def _check_name(member: str, archive: str) -> str:
    path = PurePosixPath(member.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts:
        raise UserError(f"{archive} holds the unsafe name {member!r}, which is not allowed")
    return str(path)


def files_under(folder: Path, skipped: Container[str] = ()) -> list[Path]:
    """Return the visible files below `folder`, sorted by relative path."""
    return sorted(_walk(folder, skipped), key=lambda path: path.relative_to(folder).as_posix())


def _walk(folder: Path, skipped: Container[str]) -> Iterator[Path]:
    for where, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name[0] != "." and name not in skipped]
        for name in names:
            path = Path(where, name)
            if name[0] != "." and path.is_file():
                yield path


def split_by_bytes(text: bytes) -> dict[str, bytes]:
    """Split into 90 % train, 5 % valid and 5 % test without cutting a UTF-8 character."""
    first = character_boundary(text, len(text) * 90 // 100)
    second = character_boundary(text, len(text) * 95 // 100)
    return {"train": text[:first], "valid": text[first:second], "test": text[second:]}


def path_fingerprint(path: Path) -> str:
    """A string that changes when a file below `path` does; reads names, sizes and times only."""
    files = files_under(path) if path.is_dir() else [path]
    return "\n".join([str(path.resolve()), *(_file_stamp(file) for file in files)])


def _file_stamp(file: Path) -> str:
    status = file.stat()
    return f"{file}\t{status.st_size}\t{status.st_mtime_ns}"


def read_stdlib() -> dict[str, bytes]:
    """Return the source of the running Python's standard library, split by whole files."""
    root, parts = stdlib_folder(), {split: [b""] for split in SPLITS}
    for file in _stdlib_files():
        name = file.relative_to(root).as_posix()
        source = read_file(file)
        end = b"" if source.endswith(b"\n") else b"\n"
        header = b"# file: " + name.encode("utf-8") + b"\n"
        parts[split_for_file(name)].append(header + source + end)
    splits = {split: b"".join(sources) for split, sources in parts.items()}
    if min(len(text) for text in splits.values()) < SMALLEST_BYTES:
        raise UserError(f"no Python source found below {root}; choose another data.corpus")
    return splits


def stdlib_fingerprint() -> str:
    """A string that changes with the interpreter and with the files of its library."""
    return "\n".join([platform.python_version(), *(_file_stamp(file) for file in _stdlib_files())])


def stdlib_folder() -> Path:
    """The folder of the running interpreter's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def split_for_file(name: str) -> str:
    """Assign a file to a split by its name alone; nine files in ten are for training."""
    # The salt was chosen for its even split: 89.8 / 4.5 / 5.7 % of the bytes of Python 3.11.
    digest = hashlib.sha256(b"sparing/" + name.encode("utf-8")).digest()
    bucket = int.from_bytes(digest[:8], "big") % 20
    return {0: "valid", 1: "test"}.get(bucket, "train")


def _stdlib_files() -> list[Path]:
    # _sysconfigdata holds the paths of the machine that built Python.
    return [
        file
        for file in files_under(stdlib_folder(), SKIPPED_FOLDERS)
        if file.suffix == ".py" and not file.name.startswith("_sysconfigdata")
    ]
