"""Records: files of many texts (.jsonl and .parquet), of which one column or field is read.

Records are read one after the other, so that a file need not fit into memory.
"""

import io
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from sparing.data.text import Text
from sparing.data.textfile import TextReader
from sparing.documents import shown
from sparing.errors import UserError, closest_name

RecordKind = Literal["jsonl", "parquet"]
JSON_LINES = (".jsonl", ".ndjson")
COMPRESSED = (".zst", ".gz", ".xz", ".bz2", ".lzma")
PARQUET = b"PAR1"
"""The first and the last bytes of a Parquet file."""
MAX_LINE_BYTES = 1 << 26
"""Of a line of JSON, which is parsed in memory."""
STRINGS = ("string", "large_string", "string_view")
"""Arrow's types of text."""
BATCH_ROWS = 64
"""Rows of a Parquet file that are in memory at a time."""
BLOCK_BYTES = 1 << 20


def record_kind(name: str, text: Text) -> RecordKind | None:
    """What records a file holds, by its name (of JSON) or content; None: it is a text itself."""
    name = name.lower()
    if name.endswith(".parquet") or bytes(text[:4]) == PARQUET == bytes(text[len(text) - 4 :]):
        return "parquet"
    for suffix in COMPRESSED:
        name = name.removesuffix(suffix)
    return "jsonl" if name.endswith(JSON_LINES) else None


def read_records(text: Text, kind: RecordKind, name: str, column: str) -> Iterator[bytes]:
    """The texts of a file's records in blocks; each text ends with a newline.

    `name` is that of the file, for messages.
    """
    if not column:
        raise UserError("data.text_column is empty; name the column or field that holds the text")
    texts = _json_texts(text, name, column) if kind == "jsonl" else _rows(text, name, column)
    return _blocks(_line_end_added(each) for each in texts if each)


def _line_end_added(text: str) -> bytes:
    return text.encode("utf-8") if text.endswith("\n") else text.encode("utf-8") + b"\n"


def _blocks(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in fewer parts, as each is written to disk on its own."""
    held, size = [], 0
    for part in parts:
        held.append(part)
        size += len(part)
        if size >= BLOCK_BYTES:
            yield b"".join(held)
            held, size = [], 0
    yield b"".join(held)


def _json_texts(text: Text, name: str, field: str) -> Iterator[str]:
    with io.BufferedReader(TextReader(text), BLOCK_BYTES) as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            where = f"{name}, line {number:,}"
            if len(line) > MAX_LINE_BYTES:
                raise UserError(f"{where}: it is longer than {MAX_LINE_BYTES:,} bytes")
            # Some programs write a byte-order mark first, and many an empty line last.
            line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            if line.strip():
                yield _field(_parse(line, where), field, where)


def _parse(line: bytes, where: str) -> dict[str, Any]:
    try:
        found = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as problem:
        wrong = f"byte 0x{line[problem.start]:02x} at offset {problem.start:,} of the line"
        raise UserError(f"{where}: it is not UTF-8 ({wrong})") from None
    except json.JSONDecodeError as problem:
        raise UserError(
            f"{where}: it is not JSON ({problem.msg}, column {problem.colno})"
        ) from None
    except (ValueError, RecursionError):
        # A number of more than 4300 digits, or brackets in thousands of brackets.
        raise UserError(
            f"{where}: its JSON is nested too deeply or holds too long a number"
        ) from None
    if not isinstance(found, dict):
        raise UserError(f"{where}: it must be a JSON object, not {shown(found)}")
    return found


def _field(record: dict[str, Any], field: str, where: str) -> str:
    if field not in record:
        raise _missing(where, "field", field, record)
    return _checked(record[field], field, where)


def _checked(value: Any, column: str, where: str) -> str:
    if not isinstance(value, str):
        raise UserError(f"{where}: {column!r} must be a string, not {shown(value)}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise UserError(f"{where}: {column!r} holds half of a surrogate pair") from None
    return value


def _missing(where: str, what: str, column: str, known: Iterable[str]) -> UserError:
    names = [shown(name).strip("'\"") for name in known][:20]
    hint = closest_name(column, names) if names else "it has none"
    return UserError(f"{where}: there is no {what} {column!r}; {hint} (set data.text_column)")


def _rows(text: Text, name: str, column: str) -> Iterator[str]:
    arrow = _library(name)
    with _damage_reported(name, arrow), TextReader(text) as source:
        # Without a buffer of its own, a whole row group would be in memory.
        file = arrow.parquet.ParquetFile(
            source, buffer_size=BLOCK_BYTES, pre_buffer=False, page_checksum_verification=True
        )
        _check_column(file.schema_arrow, arrow, name, column)
        number = 0
        for batch in file.iter_batches(BATCH_ROWS, columns=[column], use_threads=False):
            for value in batch.column(0):
                number += 1
                where = f"{name}, row {number:,}"
                yield _checked(_python_value(value, where), column, where)


def _python_value(value: Any, where: str) -> Any:
    try:
        return value.as_py()
    except UnicodeDecodeError:
        raise UserError(f"{where}: it is not UTF-8") from None


def _check_column(schema: Any, arrow: Any, name: str, column: str) -> None:
    kinds = [field.type for field in schema if field.name == column]
    if not kinds:
        raise _missing(name, "column", column, schema.names)
    if len(kinds) > 1:
        raise UserError(f"{name}: there are {len(kinds)} columns {column!r}; rename one of them")
    # A categorical column holds its texts in a dictionary.
    kind = kinds[0].value_type if arrow.types.is_dictionary(kinds[0]) else kinds[0]
    if str(kind) not in STRINGS:
        raise UserError(f"{name}: column {column!r} must hold strings, not {kinds[0]}")


@contextmanager
def _damage_reported(name: str, arrow: Any) -> Iterator[None]:
    try:
        yield
    except arrow.ArrowMemoryError:
        raise UserError(f"{name} cannot be read in the memory that is free") from None
    except UnicodeDecodeError:
        raise UserError(f"{name} is a damaged Parquet file: a name in it is not UTF-8") from None
    except (arrow.ArrowException, OSError) as problem:
        if isinstance(problem, OSError) and problem.filename is not None:
            # Of the disk, not of the file.
            raise
        reason = str(problem).partition("\n")[0]
        raise UserError(f"{name} is a damaged Parquet file: {reason}") from None


def _library(name: str) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError(f"{name} needs PyArrow: pip install 'sparing[data]'") from None
    return pyarrow
