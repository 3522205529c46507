"""Options and output shared by the commands."""

import shlex
import textwrap
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from sparing.errors import UserError
from sparing.inputs import check_new_path
from sparing.runs.layout import Layout
from sparing.terminal import columns, print_json, print_line

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print a table for a document.")]
Device = Annotated[str, typer.Option("--device", metavar="NAME", help="auto, cpu, cuda or cuda:N.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Change a setting.")
]
Source = Annotated[
    Path | None, typer.Option("--from", help="Local copy of the corpus (file, archive or folder).")
]
Corpus = Annotated[
    str | None,
    typer.Option("--data", metavar="CORPUS", help="Corpus name, or your own text file or folder."),
]
Minutes = Annotated[
    float | None,
    typer.Option(help="Training time in minutes; the learning rate schedule ends with it."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bar.")]
CheckpointName = Annotated[
    str | None,
    typer.Option("--checkpoint", metavar="NAME", help="last, previous or best (best by default)."),
]
RUN = "Folder written by `sparing train`; default: the package's model."
"""The help of every RUN that may be left out."""
WIDTH = 100
"""Most columns of a printed report; a narrower terminal has fewer."""
GLUE = "\N{NO-BREAK SPACE}"
"""Joins words that must stay on one line, such as a name and its value."""


def parse_out_path(text: str) -> Path:
    """Parse --out."""
    check_new_path(text)
    return Path(text)


def print_report(data: dict[str, Any], *, as_json: bool) -> None:
    """Print a report: JSON for programs, aligned lines for people."""
    if as_json:
        print_json(data)
        return
    data = _for_people(data)
    indent = max(map(len, data), default=0) + 2
    width = min(WIDTH, columns() or WIDTH) - indent
    for name, value in data.items():
        for at, line in enumerate(_lines(value, max(width, indent))):
            print_line(f"{'' if at else name:<{indent}}{line}")


def print_table(
    record: Mapping[str, Any], layout: Layout, *, as_json: bool, markdown: bool
) -> None:
    """Print a record of rows and notes: JSON, a table for a document, or one for the terminal."""
    rows, notes = record["rows"], record.get("notes", ())
    if as_json:
        print_json(record)
    elif markdown:
        print_line(layout.markdown(rows, notes).rstrip())
    else:
        print_line(layout.text(rows, notes, columns()))


def print_message(line: str) -> None:
    """Print a line to standard error; a closed terminal must not stop the work."""
    with suppress(OSError):
        print_line(line, err=True)


def report_stop(signal: int) -> int:
    """Report that a signal stopped a command that can be continued; return its exit status."""
    print_message("stopped; run the same command again to continue")
    return 128 + signal


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


def _for_people(data: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what is unset. A seed is a name, not a count, so its digits are not grouped."""
    return {
        name: _for_people(value)
        if isinstance(value, Mapping)
        else (str(value) if name.endswith("seed") else value)
        for name, value in data.items()
        if value is not None
    }


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
