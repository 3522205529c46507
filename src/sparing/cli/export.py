"""`sparing export`: a trained model in the format of another program."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from sparing import device
from sparing.cli.complete import complete_runs
from sparing.cli.options import RUN, CheckpointName, Json, parse_out_path, print_report
from sparing.errors import UserError, unknown_name
from sparing.runs import config
from sparing.runs.bundled import run_or_bundled
from sparing.runs.folder import RunFolder, load_model_and_step


def export(
    path: Annotated[
        Path | None,
        typer.Argument(metavar="RUN", help=RUN, autocompletion=complete_runs),
    ] = None,
    *,
    format: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="hf: Hugging Face Transformers.",
            autocompletion=lambda: list(FORMATS),
        ),
    ],
    out: Annotated[
        Path,
        typer.Option("--out", metavar="FOLDER", parser=parse_out_path, help="A new folder."),
    ],
    checkpoint: CheckpointName = None,
    as_json: Json = False,
) -> None:
    """Write a trained model for another program, and check that it answers the same there."""
    if format not in FORMATS:
        raise unknown_name("format", format, FORMATS)
    if out.exists():
        raise UserError(f"{out} exists; --out names a new folder")
    folder = run_or_bundled(path)
    if folder.config().family == "supernet":
        raise UserError(
            f"{folder.path} is a search, whose blocks still compete; `sparing derive` makes a "
            "recipe of it: train that, and export the result"
        )
    report = FORMATS[format](folder, out, folder.checkpoint(checkpoint))
    if not as_json:
        report["largest_difference"] = f"{report['largest_difference']:.1e}"
    print_report({"folder": str(out), "format": format, **report}, as_json=as_json)


def export_hf(folder: RunFolder, out: Path, checkpoint: str) -> dict[str, Any]:
    """Write a folder for Hugging Face Transformers; return its size and its check."""
    from sparing.export.hf.write import Trained, require_transformers, write_hf

    require_transformers()
    model, step = load_model_and_step(folder, device.pick("cpu", "float32"), checkpoint)
    trained = Trained(
        model=model,
        vocab=folder.vocab(),
        settings=config.to_json(folder.config()),
        results=folder.read("results") if folder.results() else {},
        checkpoint=checkpoint,
        step=step,
    )
    return asdict(write_hf(trained, out))


FORMATS: dict[str, Callable[[RunFolder, Path, str], dict[str, Any]]] = {"hf": export_hf}
"""What writes each format: from a run to a new folder, the weights of a checkpoint; a report."""
