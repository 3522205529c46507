"""Options and habits the verbs have in common."""

import json
import shlex
import sys
import textwrap
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from sparing.errors import UserError
from sparing.runs.table import Layout

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Device = Annotated[str, typer.Option("--device", metavar="NAME", help="auto, cpu, cuda or cuda:N.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Change a setting.")
]
Source = Annotated[
    Path | None, typer.Option("--from", help="Local copy of the corpus (file, archive or folder).")
]
CheckpointName = Annotated[
    str | None,
    typer.Option("--checkpoint", metavar="NAME", help="last, previous or best (best by default)."),
]
CONTROLS = {
    code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"
}
"""What could move the cursor, colour the screen or ring: C0, DEL and C1."""
WIDTH = 100
"""Columns of a report."""
GLUE = "\N{NO-BREAK SPACE}"
"""Between words that stay in one line, such as a name and its value."""


def out_path(text: str) -> Path:
    """What --out names; an empty name, as from an unset variable, would be the folder one is in."""
    if not text.strip():
        raise UserError("--out is empty; name a place to write to")
    return Path(text)


def show(data: dict[str, Any], *, as_json: bool) -> None:
    """Print a report: JSON for programs, aligned lines for people."""
    if as_json:
        typer.echo(json.dumps(data))
        return
    width = max(len(name) for name in data)
    for name, value in data.items():
        for at, line in enumerate(_lines(value, WIDTH - width - 2)):
            typer.echo(f"{'' if at else name:<{width}}  {line}")


def show_table(record: Mapping[str, Any], layout: Layout, *, as_json: bool) -> None:
    """Print a record of rows and notes: JSON for programs, an aligned table for people."""
    text = json.dumps(record) if as_json else layout.text(record["rows"], record["notes"])
    typer.echo(text)


def show_message(line: str) -> None:
    """Print a line to standard error; a closed terminal must not stop the work."""
    with suppress(OSError):
        typer.echo(line, err=True)


def stopped(signal: int) -> int:
    """The exit status of a verb that a signal has ended, and that goes on where it was."""
    typer.echo("stopped; the same command goes on", err=True)
    return 128 + signal


def say(text: str) -> None:
    """Write text of a model's or a user's; a terminal is shown its control characters in words.

    Piped, it goes out as it is.
    """
    if sys.stdout.isatty():
        text = text.translate(CONTROLS)
    # A terminal that cannot show a character must not end the stream.
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, errors="replace").decode(encoding))
    sys.stdout.flush()


def given(call: typer.Context) -> set[str]:
    """The options that were written on the command line, whatever their values."""
    return {
        parameter.opts[0]
        for parameter in call.command.params
        if (source := call.get_parameter_source(str(parameter.name)))
        and source.name == "COMMANDLINE"
    }


def refuse_strays(options: Set[str], needs: Mapping[str, Sequence[str]]) -> None:
    """Refuse an option of `needs` that stands there without any of those it belongs to."""
    for option, homes in needs.items():
        if option in options and options.isdisjoint(homes):
            raise UserError(f"{option} is for {' or '.join(homes)}; without it, leave {option} out")


def refuse_apart(options: Set[str], apart: Mapping[str, Sequence[str]]) -> None:
    """Refuse what an option of `apart` would leave unread."""
    for option, others in apart.items():
        strays = [other for other in others if other in options]
        if option in options and strays:
            raise UserError(f"{option} makes no use of {' or '.join(strays)}; leave one side out")


def _lines(value: Any, width: int) -> list[str]:
    """A value in words; where a line is too short for it, its parts begin lines of their own."""
    words = _words(value)
    parts = [words]
    if len(words) > width and isinstance(value, dict) and _nested(value):
        parts = [_words({name: each}) for name, each in value.items()]
    indent = "  " if len(parts) > 1 else ""
    lines = [line for part in parts for line in _wrapped(part, width, indent)]
    return [line.replace(GLUE, " ") for line in lines]


def _nested(value: dict[str, Any]) -> bool:
    return any(isinstance(each, dict | list) for each in value.values())


def _wrapped(words: str, width: int, indent: str) -> list[str]:
    lines = textwrap.wrap(
        words,
        width,
        subsequent_indent=indent,
        # Paths and the like stay in one piece, however long.
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines or [""]


def _words(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:,.4f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, dict):
        return ", ".join(f"{name}{GLUE}{_words(each)}" for name, each in value.items())
    if isinstance(value, list):
        if value and all(isinstance(each, str) for each in value):
            # The command of a run: in one line, however long, to be copied.
            return shlex.join(value).replace(" ", GLUE)
        return ", ".join(map(_words, value))
    return " ".join(str(value).split())
