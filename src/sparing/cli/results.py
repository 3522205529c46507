"""`sparing results`: the figures of many runs in one table."""

import json
from pathlib import Path
from typing import Annotated

import typer

from sparing.cli.options import Json, check_conflicting_options, given_options
from sparing.errors import UserError
from sparing.runs.table import as_markdown, as_text, read_rows


def results(
    call: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER")] = Path("results"),
    markdown: Annotated[bool, typer.Option("--markdown", help="A table for a document.")] = False,
    as_json: Json = False,
) -> None:
    """One table of all runs below FOLDER; seeds (NAME/seedN or NAME-seedN) in one row.

    Bits per byte are means over the seeds ± half of worst less best.
    """
    check_conflicting_options(given_options(call), {"--json": ("--markdown",)})
    rows, problems = read_rows(folder)
    for problem in problems:
        typer.echo(f"sparing: {problem}", err=True)
    if as_json:
        told = {"rows": [row.to_json() for row in rows], "left_out": problems}
        typer.echo(json.dumps(told))
    elif rows:
        typer.echo(as_markdown(rows).rstrip() if markdown else as_text(rows))
    if not rows:
        raise UserError(f"no run below {folder} can be read")
