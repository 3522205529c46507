"""Text that stays on disk and is read piece by piece, and unnamed files to unpack it into."""

import io
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from tqdm import tqdm

from sparing.data.text import Text, split_blocks
from sparing.errors import UserError
from sparing.files import add_path_to_errors, expand_home
from sparing.inputs import open_regular
from sparing.terminal import escape_line
from sparing.units import format_bytes, pluralize


def cache_dir() -> Path:
    """The cache folder: `$SPARING_HOME`, or `~/.cache/sparing`."""
    chosen = os.environ.get("SPARING_HOME")
    return expand_home(chosen or "~/.cache/sparing")


class TextFile:
    """A stretch of an open file: slicing it gives a shorter stretch, `bytes` reads it."""

    def __init__(self, file: "_SharedFile", begin: int, end: int) -> None:
        self._file = file
        self._begin = begin
        self._end = end

    def __len__(self) -> int:
        return self._end - self._begin

    def __getitem__(self, part: slice) -> "TextFile":
        begin, end, _ = part.indices(len(self))
        return TextFile(self._file, self._begin + begin, self._begin + max(begin, end))

    def __bytes__(self) -> bytes:
        return self._file.read(self._begin, len(self))

    def open(self) -> IO[bytes]:
        """A file object for all of the file, at its beginning."""
        file = os.fdopen(os.dup(self._file.descriptor), "rb")
        file.seek(0)
        return file


class TextReader(io.RawIOBase):
    """A text as a file object, for libraries that read from those."""

    def __init__(self, text: Text) -> None:
        self._text = text
        self._at = 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """The offset of the next byte."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to an offset from the beginning, from here or from the end."""
        begin = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: len(self._text)}[whence]
        self._at = max(0, begin + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer, except at the end; return how many bytes were read."""
        data = bytes(self._text[self._at : self._at + len(buffer)])
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


class _SharedFile:
    """An open file that is closed together with the last of its texts."""

    def __init__(self, handle: IO[bytes], name: str) -> None:
        # A file object would warn that it is closed only when it is no longer needed.
        with handle:
            self.descriptor = os.dup(handle.fileno())
        self.name = name
        # Unlike __del__, this needs nothing that the interpreter has taken apart at its end. There
        # the kernel closes the file: a thread may still be reading it.
        weakref.finalize(self, os.close, self.descriptor).atexit = False

    def write(self, data: bytes) -> None:
        """Append all of `data`."""
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self.descriptor, rest) :]

    def read(self, begin: int, size: int) -> bytes:
        """Read `size` bytes from offset `begin` on."""
        parts = []
        # A single call reads 2 GiB at most.
        while size and (part := os.pread(self.descriptor, size, begin)):
            parts.append(part)
            begin, size = begin + len(part), size - len(part)
        if size:
            raise UserError(f"{self.name} became shorter while it was read; try again")
        return b"".join(parts)


@dataclass(frozen=True, slots=True)
class Unpacking:
    """How texts are unpacked: how large they may be, and what of records is read."""

    most_bytes: int
    why: str
    progress: bool = False
    text_column: str = "text"
    """The column or field of records that holds the text."""

    @classmethod
    def of(
        cls, max_bytes: int | None = None, *, progress: bool = False, text_column: str = "text"
    ) -> "Unpacking":
        """With the limit of --max-bytes, or else half of the free disk space of the cache."""
        if max_bytes is not None and max_bytes < 1:
            raise UserError(f"--max-bytes must be at least 1, not {max_bytes}")
        if max_bytes is not None:
            return cls(max_bytes, f"--max-bytes {max_bytes}", progress, text_column)
        folder = cache_dir()
        nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        free = shutil.disk_usage(nearest).free
        why = f"half of the {format_bytes(free)} free in {folder}"
        return cls(free // 2, why, progress, text_column)

    def check(self, name: Path, size_bytes: int) -> None:
        """Refuse a text that is too large."""
        if size_bytes > self.most_bytes:
            raise UserError(
                f"{name} holds more than {pluralize(self.most_bytes, 'byte')} of text "
                f"({self.why}); `sparing data prepare` takes it with a larger --max-bytes"
            )


class Scratch:
    """Writes texts to a nameless file in the cache folder, in a `with` block.

    The kernel removes the file with the last text that reads it, or with the process.
    """

    def __init__(self, name: Path, how: Unpacking) -> None:
        self._name = name
        self._how = how
        cache_dir().mkdir(parents=True, exist_ok=True)
        nameless = tempfile.TemporaryFile(dir=cache_dir())  # noqa: SIM115  closed below
        self._file = _SharedFile(nameless, str(name))
        self._bar = bytes_bar(f"reading {name.name}", None, shown=how.progress)
        self.size_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self._bar.close()

    def write(self, blocks: Iterable[bytes]) -> TextFile:
        """Append blocks; return the text that they make."""
        begin = self.size_bytes
        for block in blocks:
            self.size_bytes += len(block)
            self._how.check(self._name, self.size_bytes)
            self._write(block)
        return TextFile(self._file, begin, self.size_bytes)

    def _write(self, block: bytes) -> None:
        with add_path_to_errors(cache_dir()):
            self._file.write(block)
        self._bar.update(len(block))

    def text(self) -> TextFile:
        """All that was written."""
        return TextFile(self._file, 0, self.size_bytes)


def bytes_bar(what: str, total: int | None, *, shown: bool) -> "tqdm[Any]":
    """A progress bar that counts bytes."""
    # With None, tqdm prints only to a terminal.
    disable = None if shown else True
    desc = escape_line(what)
    return tqdm(total=total, desc=desc, unit="B", unit_scale=True, disable=disable, leave=False)


def open_text(path: Path) -> TextFile:
    """The text of an ordinary file, as it is."""
    file = _SharedFile(open_regular(path), str(path))
    return TextFile(file, 0, os.fstat(file.descriptor).st_size)


def join_texts(texts: Sequence[Text], name: Path, how: Unpacking) -> Text:
    """One text after the other; a single one is not copied."""
    if len(texts) == 1:
        return texts[0]
    with Scratch(name, how) as scratch:
        return scratch.write(block for text in texts for block in split_blocks(text))
