"""`sparing import`: checkpoints of other programs as runs."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from sparing import device
from sparing.cli.options import Json, out_path, show
from sparing.runs.import_released import import_adaptive_span
from sparing.runs.provenance import provenance


def import_(
    layout: Annotated[Literal["adaptive-span"], typer.Argument(help="Which program wrote it.")],
    file: Annotated[Path, typer.Argument(metavar="FILE.pt")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FOLDER",
            parser=out_path,
            help="Of the run, else runs/NAME-of-the-file.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a run of a released checkpoint, to evaluate, generate with and plot."""
    path = out or Path("runs") / f"{layout}-{file.stem}"
    folder = import_adaptive_span(file, path, provenance(device.pick("cpu", "float32"), 0))
    run = folder.config()
    show({"run": str(path), "recipe": run.recipe, "model": run.identity()}, as_json=as_json)
