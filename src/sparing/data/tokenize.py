"""Tokenizes texts chunk by chunk, so that they need not fit into memory, and verifies the files."""

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypedDict, cast

import numpy as np
import numpy.typing as npt

from sparing.data.text import (
    Text,
    WatchedText,
    WordCount,
    decode_chunks,
    smallest_dtype,
    split_chunks,
)
from sparing.data.textfile import Scratch, Unpacking, bytes_bar
from sparing.data.vocab import Vocab
from sparing.documents import Count
from sparing.errors import UserError
from sparing.files import add_path_to_errors
from sparing.inputs import open_regular

Dtype = Literal["|u1", "<u2", "<u4", "<u8"]
"""A type of unsigned numbers, as numpy writes it."""


class FileEntry(TypedDict):
    """What the manifest says about a file of numbers."""

    dtype: Dtype
    sha256: str


class SplitEntry(TypedDict):
    """What the manifest says about a split."""

    tokens: Count
    bytes: Count
    words: Count
    files: dict[str, FileEntry]
    text_sha256: str


def check_readable(texts: Mapping[str, Text], name: str) -> None:
    """Refuse texts that are not UTF-8 or hold NUL bytes; offsets count from the first text on."""
    begin = 0
    for text in texts.values():
        for chunk in decode_chunks(text, begin):
            if "\0" in chunk:
                raise UserError(f"{name} holds NUL bytes, so it is not text; set data.vocab=bytes")
        begin += len(text)


def without_newlines(texts: Mapping[str, Text], name: str, how: Unpacking) -> dict[str, Text]:
    """The texts with all newlines removed."""
    with Scratch(Path(name), how) as scratch:
        return {
            split: scratch.write(chunk.replace(b"\n", b"") for chunk in split_chunks(text))
            for split, text in texts.items()
        }


def write_split(folder: Path, split: str, text: Text, vocab: Vocab) -> SplitEntry:
    """Write the tokens of a text to `folder`; return its entry in the manifest."""
    ids = _ArrayFile(folder / f"{split}.bin", smallest_dtype(vocab.size))
    ends = _ArrayFile(folder / f"{split}.ends", smallest_dtype(len(text) + 1))
    words, digest, size_bytes = WordCount(), hashlib.sha256(), 0
    for chunk in split_chunks(text):
        ids.append(vocab.encode(chunk))
        if (found := vocab.ends(chunk)) is not None:
            ends.append(size_bytes + found)
        words.update(chunk)
        digest.update(chunk)
        size_bytes += len(chunk)
    if not ids.length:
        raise UserError(f"the {split} split holds no tokens; use a larger corpus")
    return {
        "tokens": ids.length,
        "bytes": size_bytes,
        "words": words.words,
        "text_sha256": digest.hexdigest(),
        "files": {file.path.name: file.about() for file in (ids, ends) if file.length},
    }


def verify_file(path: Path, expected: str, before: Any) -> list[int]:
    """Return size and time of a file; refuse one with a wrong checksum."""
    with open_regular(path) as file:
        status = os.fstat(file.fileno())
        now = [status.st_size, status.st_mtime_ns]
        if now != before and hashlib.file_digest(file, "sha256").hexdigest() != expected:
            raise UserError(f"{path} is damaged: its checksum is wrong")
    return now


@contextmanager
def watched_texts(
    texts: Mapping[str, Text], what: str, how: Unpacking
) -> Iterator[dict[str, Text]]:
    """The texts, with a progress bar of what has been read of them."""
    with bytes_bar(what, sum(map(len, texts.values())), shown=how.progress) as bar:
        yield {split: WatchedText(text, bar.update) for split, text in texts.items()}


class _ArrayFile:
    """Appends arrays to a file, which the first of them creates, and hashes them."""

    def __init__(self, path: Path, dtype: np.dtype[Any]) -> None:
        self.path = path
        self.length = 0
        self._dtype = dtype
        self._digest = hashlib.sha256()

    def append(self, values: npt.NDArray[Any]) -> None:
        """Write the numbers of an array in the type of the file."""
        if values.size:
            data = values.astype(self._dtype, copy=False).data
            with add_path_to_errors(self.path), open(self.path, "ab") as file:
                file.write(data)
            self._digest.update(data)
            self.length += len(values)

    def about(self) -> FileEntry:
        """Type and checksum of the file."""
        return {"dtype": cast("Dtype", self._dtype.str), "sha256": self._digest.hexdigest()}
