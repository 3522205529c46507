"""`sparing results`: the results of many runs in one table."""

import json
from pathlib import Path
from typing import Annotated

import typer

from sparing.cli.options import Json, check_conflicting_options, given_options
from sparing.errors import UserError
from sparing.runs.table import RESULTS, read_rows


def results(
    call: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER")] = Path("results"),
    markdown: Annotated[bool, typer.Option("--markdown", help="A table for a document.")] = False,
    as_json: Json = False,
) -> None:
    """Print one table of all runs below FOLDER; seeds (NAME/seedN or NAME-seedN) share a row.

    Bits per byte are means over the seeds ± half the distance from the worst to the best.
    """
    check_conflicting_options(given_options(call), {"--json": ("--markdown",)})
    found, problems = read_rows(folder)
    rows = [row.to_json() for row in found]
    for problem in problems:
        typer.echo(f"sparing: {problem}", err=True)
    if as_json:
        typer.echo(json.dumps({"rows": rows, "left_out": problems}))
    elif rows:
        typer.echo(RESULTS.markdown(rows).rstrip() if markdown else RESULTS.text(rows))
    if not rows:
        raise UserError(f"none of the runs below {folder} can be read")
