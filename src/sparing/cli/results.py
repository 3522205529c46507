"""`sparing results`: the results of many runs in one table."""

from pathlib import Path
from typing import Annotated

import typer

from sparing.cli.options import (
    Json,
    Markdown,
    check_conflicting_options,
    given_options,
    print_table,
)
from sparing.errors import UserError
from sparing.runs.table import RESULTS, read_rows
from sparing.terminal import print_line


def results(
    call: typer.Context,
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder that holds runs, at any depth.")
    ] = Path("results"),
    markdown: Markdown = False,
    as_json: Json = False,
) -> None:
    """Print one table of all runs below FOLDER; seeds (NAME/seedN or NAME-seedN) share a row.

    Bits per byte are means over the seeds ± half the distance from the worst to the best.
    """
    check_conflicting_options(given_options(call), {"--json": ("--markdown",)})
    found, problems = read_rows(folder)
    rows = [row.to_json() for row in found]
    for problem in problems:
        print_line(f"sparing: {problem}", err=True)
    if rows or as_json:
        record = {"rows": rows, "left_out": problems}
        print_table(record, RESULTS, as_json=as_json, markdown=markdown)
    if not rows:
        raise UserError(f"none of the runs below {folder} can be read")
