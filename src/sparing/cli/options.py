"""Options and output shared by the commands."""

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
"""Control characters (C0, DEL and C1), which could move the cursor or change colours."""
WIDTH = 100
"""Columns of a printed report."""
GLUE = "\N{NO-BREAK SPACE}"
"""Joins words that must stay on one line, such as a name and its value."""


def parse_out_path(text: str) -> Path:
    """Parse --out; an empty name, as from an unset variable, would mean the current folder."""
    if not text.strip():
        raise UserError("--out is empty; name a file or folder to write to")
    return Path(text)


def print_report(data: dict[str, Any], *, as_json: bool) -> None:
    """Print a report: JSON for programs, aligned lines for people."""
    if as_json:
        typer.echo(json.dumps(data))
        return
    width = max(len(name) for name in data)
    for name, value in data.items():
        for at, line in enumerate(_lines(value, WIDTH - width - 2)):
            typer.echo(f"{'' if at else name:<{width}}  {line}")


def print_table(record: Mapping[str, Any], layout: Layout, *, as_json: bool) -> None:
    """Print a record of rows and notes: JSON for programs, an aligned table for people."""
    text = json.dumps(record) if as_json else layout.text(record["rows"], record["notes"])
    typer.echo(text)


def print_message(line: str) -> None:
    """Print a line to standard error; a closed terminal must not stop the work."""
    with suppress(OSError):
        typer.echo(line, err=True)


def report_stop(signal: int) -> int:
    """Report that a signal stopped a command that can be continued; return its exit status."""
    print_message("stopped; run the same command again to continue")
    return 128 + signal


def print_text(text: str) -> None:
    """Print text of a model or a user; on a terminal, control characters are escaped."""
    if sys.stdout.isatty():
        text = text.translate(CONTROLS)
    # A character that the terminal cannot show must not raise an error.
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, errors="replace").decode(encoding))
    sys.stdout.flush()


def given_options(call: typer.Context) -> set[str]:
    """Return the options given on the command line, whatever their values."""
    return {
        parameter.opts[0]
        for parameter in call.command.params
        if (source := call.get_parameter_source(str(parameter.name)))
        and source.name == "COMMANDLINE"
    }


def check_dependent_options(options: Set[str], needs: Mapping[str, Sequence[str]]) -> None:
    """Refuse an option that is given without any of the options it needs."""
    for option, needed in needs.items():
        if option in options and options.isdisjoint(needed):
            raise UserError(f"{option} is for {' or '.join(needed)}; leave it out otherwise")


def check_conflicting_options(options: Set[str], conflicts: Mapping[str, Sequence[str]]) -> None:
    """Refuse options that another given option would ignore."""
    for option, others in conflicts.items():
        ignored = [other for other in others if other in options]
        if option in options and ignored:
            raise UserError(f"{option} ignores {' or '.join(ignored)}; leave one of them out")


def _lines(value: Any, width: int) -> list[str]:
    """Format a value; the parts of a nested one that is too long start on lines of their own."""
    text = _format(value)
    parts = [text]
    if len(text) > width and isinstance(value, dict) and _is_nested(value):
        parts = [_format({name: each}) for name, each in value.items()]
    indent = "  " if len(parts) > 1 else ""
    lines = [line for part in parts for line in _wrap(part, width, indent)]
    return [line.replace(GLUE, " ") for line in lines]


def _is_nested(value: dict[str, Any]) -> bool:
    return any(isinstance(each, dict | list) for each in value.values())


def _wrap(text: str, width: int, indent: str) -> list[str]:
    lines = textwrap.wrap(
        text,
        width,
        subsequent_indent=indent,
        # Paths are never broken, however long.
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines or [""]


def _format(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:,.4f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, dict):
        return ", ".join(f"{name}{GLUE}{_format(each)}" for name, each in value.items())
    if isinstance(value, list):
        if value and all(isinstance(each, str) for each in value):
            # The command of a run stays on one line, however long, so that it can be copied.
            return shlex.join(value).replace(" ", GLUE)
        return ", ".join(map(_format, value))
    return " ".join(str(value).split())
