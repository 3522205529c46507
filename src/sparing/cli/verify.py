"""`sparing verify`: whether a recipe still gives the curve and figures it was published with."""

from pathlib import Path
from typing import Annotated, Any

import typer

from sparing.cli.complete import complete_recipes
from sparing.cli.options import (
    Device,
    Json,
    Quiet,
    Source,
    check_conflicting_options,
    given_options,
    parse_out_path,
    print_message,
    print_table,
)
from sparing.errors import UserError
from sparing.runs.folder import open_run
from sparing.runs.layout import Layout
from sparing.runs.reference import Reference, find_reference
from sparing.runs.start import default_run_path
from sparing.runs.train import TrainOptions
from sparing.runs.verify import By, compare, end_of_part, train_like
from sparing.training.stopping import Pace, process_age_s

CONFLICTS = {"--run": ("--out", "--by", "--from", "--device", "--quiet")}
"""Options, and the options that they would ignore."""
TABLE = Layout(
    columns={
        "bits per byte": lambda row: str(row["what"]),
        "reference": lambda row: f"{row['reference']:.4f}",
        "here": lambda row: f"{row['here']:.4f}",
        "difference": lambda row: f"{row['difference']:+.4f}",
        "allowed": lambda row: f"{row['allowed']:.4f}",
        "": lambda row: "within" if row["within"] else "OUTSIDE",
    },
    left=("bits per byte", ""),
)


def verify(
    call: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            help="A recipe with a published run to compare with.",
            autocompletion=complete_recipes,
        ),
    ],
    until: Annotated[
        float,
        typer.Option(help="Train and compare only this fraction of the curve."),
    ] = 1.0,
    by: Annotated[
        By,
        typer.Option(
            help="steps: compare step by step, on a machine of any speed. minutes: compare "
            "minute by minute."
        ),
    ] = "steps",
    run: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Compare an existing run instead of training one."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="PATH", parser=parse_out_path, help="Folder of the new run."),
    ] = None,
    source: Source = None,
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: Json = False,
) -> int:
    """Train a recipe as the published run was trained, and compare curve and figures.

    Exit status: 0 within the tolerance, 1 outside it, 2 for bad input.
    """
    check_conflicting_options(given_options(call), CONFLICTS)
    if not 0 < until <= 1:
        raise UserError(f"--until is a fraction of the run, above 0 and at most 1, not {until:g}")
    reference = find_reference(name)
    if run is None:
        pace = _pace(reference, by)
        end_of_part(reference, by, until)
        run = out or _default_path(name)
        options = TrainOptions(
            device=device,
            source=source,
            progress=not quiet,
            head_start_s=process_age_s(),
            until=until,
            pace=pace,
            exit_on_second_interrupt=True,
        )
        if signal := train_like(reference, run, options):
            print_message(
                f"stopped; to compare a part of it: sparing verify {name} --until FRACTION "
                f"--run {run}"
            )
            return 128 + signal
    record = compare(reference, open_run(run), until=until)
    _print(record, as_json=as_json)
    return 0 if record["verdict"] == "within" else 1


def _default_path(name: str) -> Path:
    path = default_run_path(name, resume=False)
    return path.with_name(f"verify-{path.name}")


def _pace(reference: Reference, by: By) -> Pace | None:
    pace = reference.pace()
    if by == "minutes" and pace is None:
        raise UserError("this recipe has no budget in minutes; use --by steps")
    return pace if by == "steps" else None


def _print(record: dict[str, Any], *, as_json: bool) -> None:
    there, part = record["reference"], f"{record['until']:.0%} of " if record["until"] < 1 else ""
    verdict = (
        f"{record['verdict']} the spread over {part}the curve of commit {there['commit']}: "
        f"{record['spread']}"
    )
    shown = record if as_json else {**record, "notes": [*record["notes"], verdict]}
    print_table(shown, TABLE, as_json=as_json, markdown=False)
