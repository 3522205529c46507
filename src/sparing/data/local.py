"""Text in local files: plain files, archives, records, folders, and Python's standard library."""

import hashlib
import os
import platform
import sysconfig
from collections.abc import Container, Iterator, Mapping
from pathlib import Path, PurePosixPath

from sparing.data.archives import unpack
from sparing.data.corpora import SPLITS
from sparing.data.records import RecordKind, read_records, record_kind
from sparing.data.text import Text, character_boundary, split_blocks
from sparing.data.textfile import Scratch, Unpacking, join_texts, open_text
from sparing.device import limit_to_free_ram
from sparing.errors import UserError
from sparing.units import pluralize

SMALLEST_BYTES = 100
SKIPPED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
"""Folders of the standard library that hold tests or third-party packages."""


def read_path(path: Path, how: Unpacking | None = None) -> Text:
    """Return the text of a file (unpacked if it is an archive) or of all text files of a folder.

    A folder's files are joined in the order of their relative paths; hidden files and binary files
    (those with a NUL byte) are left out, and so they are of an archive of several files. A single
    binary file is taken as it is. Of a file of records (.jsonl, .parquet), the texts in them are
    read, wherever it is.
    """
    how = how or Unpacking.of()
    text = _read_folder(path, how) if path.is_dir() else _read_file(path, how)
    if not len(text):
        raise UserError(f"{path} holds no text")
    if len(text) < SMALLEST_BYTES:
        raise UserError(
            f"{path} holds {pluralize(len(text), 'byte')} of text; "
            f"a corpus needs at least {SMALLEST_BYTES}"
        )
    return text


def _read_folder(folder: Path, how: Unpacking) -> Text:
    with Scratch(folder, how) as scratch:
        for path in files_under(folder):
            text = open_text(path)
            if record_kind(path.name, text):
                for each in _without_records(unpack(path, how), path, how).values():
                    scratch.write(split_blocks(each))
            elif not _is_binary(text):
                scratch.write(split_blocks(text))
    return scratch.text()


def _read_file(path: Path, how: Unpacking) -> Text:
    members = unpack(path, how)
    if len(members) > 1:
        members = {name: text for name, text in members.items() if not _is_hidden(name)}
    if len(members) > 1:
        members = {
            name: text
            for name, text in members.items()
            if record_kind(name, text) or not _is_binary(text)
        }
    texts = _without_records(members, path, how)
    return join_texts([texts[name] for name in sorted(texts)], path, how)


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in PurePosixPath(name).parts)


def _is_binary(text: Text) -> bool:
    return any(b"\0" in block for block in split_blocks(text))


def _without_records(members: Mapping[str, Text], path: Path, how: Unpacking) -> dict[str, Text]:
    """The files of an archive, or a single file, with the texts of records in their place."""
    texts: dict[str, Text] = {}
    for name, text in members.items():
        where = str(path) if len(members) == 1 else f"{name} in {path}"
        kind = record_kind(name, text)
        texts[name] = text if kind is None else _read_records(text, kind, where, path, how)
    return texts


def _read_records(text: Text, kind: RecordKind, name: str, path: Path, how: Unpacking) -> Text:
    try:
        # Parquet can claim more than any machine holds.
        with limit_to_free_ram(), Scratch(path, how) as scratch:
            return scratch.write(read_records(text, kind, name, how.text_column))
    except MemoryError:
        raise UserError(f"{name} cannot be read in the memory that is free") from None


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


def split_by_bytes(text: Text) -> dict[str, Text]:
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


def read_stdlib() -> dict[str, Text]:
    """Return the source of the running Python's standard library, split by whole files."""
    root, parts = stdlib_folder(), {split: [b""] for split in SPLITS}
    for file in _stdlib_files():
        name = file.relative_to(root).as_posix()
        source = bytes(open_text(file))
        end = b"" if source.endswith(b"\n") else b"\n"
        header = b"# file: " + name.encode("utf-8") + b"\n"
        parts[split_for_file(name)].append(header + source + end)
    splits: dict[str, Text] = {split: b"".join(sources) for split, sources in parts.items()}
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
