"""`sparing import`: convert released checkpoints of other programs to runs."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from sparing import device
from sparing.cli.options import Json, parse_out_path, print_report
from sparing.runs.provenance import provenance
from sparing.runs.released.adaptive_span import import_adaptive_span
from sparing.runs.released.sha_rnn import import_sha_rnn
from sparing.runs.released.transformer_xl import import_transformer_xl

IMPORTERS = {
    "adaptive-span": import_adaptive_span,
    "sha-rnn": import_sha_rnn,
    "transformer-xl": import_transformer_xl,
}


def import_(
    layout: Annotated[
        Literal["adaptive-span", "sha-rnn", "transformer-xl"],
        typer.Argument(metavar="PROGRAM", help="Program that wrote the checkpoint."),
    ],
    file: Annotated[Path, typer.Argument(metavar="FILE.pt", help="Checkpoint to convert.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FOLDER",
            parser=parse_out_path,
            help="Run folder; default: runs/PROGRAM-FILE.",
        ),
    ] = None,
    max_bytes: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Largest size of its tensors; default: half of free memory."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Convert a released checkpoint to a run that the other commands can use."""
    path = out or Path("runs") / f"{layout}-{file.stem}"
    about = provenance(device.pick("cpu", "float32"), 0)
    folder = IMPORTERS[layout](file, path, about, max_bytes=max_bytes)
    run = folder.config()
    print_report({"run": str(path), "recipe": run.recipe, "model": run.identity()}, as_json=as_json)
