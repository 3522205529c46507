"""The one place that prints. What could move the cursor or deceive the eye is escaped here."""

import json
import os
import re
import shutil
import sys
from typing import Any, TextIO

UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""C0 and C1 controls but newline and tab, line separators, bidirectional overrides, and the bytes
of file names that are not UTF-8."""
BOLD, PLAIN = "\x1b[1m", "\x1b[0m"


def escape(text: str) -> str:
    r"""Replace unsafe characters by escapes such as `\x1b`; newlines and tabs stay."""
    return UNSAFE.sub(_escaped, text)


def escape_line(text: str) -> str:
    """Escape a text that must stay on one line, such as a name in a table."""
    return re.sub(r"[\n\t]", _escaped, escape(text))


def print_line(text: str = "", *, err: bool = False) -> None:
    """Print a line, or several, of our own; the names in them may be anybody's."""
    _write(sys.stderr if err else sys.stdout, escape(text) + "\n")


def print_json(data: Any) -> None:
    """Print a JSON object on one line."""
    # The only control character that is not escaped already; `\x7f` would not be JSON.
    _write(sys.stdout, json.dumps(data).replace("\x7f", "\\u007f") + "\n")


def print_text(text: str, *, strong: bool = False) -> None:
    """Print text of a model or a user: escaped on a terminal, unchanged in a file or pipe.

    `strong` makes it bold on a terminal that can.
    """
    shown = escape(text) if sys.stdout.isatty() else text
    _write(sys.stdout, f"{BOLD}{shown}{PLAIN}" if strong and shown and styled() else shown)


def print_bytes(data: bytes) -> None:
    """Write the contents of a file to standard output, unchanged."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def styled() -> bool:
    """Whether standard output is a terminal that shows bold text, and the user wants it."""
    dull = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb"
    return sys.stdout.isatty() and not dull


def columns() -> int | None:
    """`COLUMNS`, or the width of the terminal; None where the output goes elsewhere."""
    return shutil.get_terminal_size((0, 0)).columns or None


def _write(stream: TextIO, text: str) -> None:
    # A character that the terminal cannot show must not raise an error.
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, errors="backslashreplace").decode(encoding))
    stream.flush()


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    if 0xDC80 <= code <= 0xDCFF:
        # Python's stand-in for a byte that is not UTF-8.
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
