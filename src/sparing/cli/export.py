"""`sparing export`: a trained model in the format of another program."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from sparing import device
from sparing.cli.complete import complete_runs
from sparing.cli.options import (
    RUN,
    CheckpointName,
    Json,
    check_dependent_options,
    given_options,
    parse_out_path,
    print_report,
)
from sparing.errors import UserError, unknown_name
from sparing.export.onnx.graph import GraphOptions
from sparing.export.trained import Trained
from sparing.runs import config
from sparing.runs.bundled import run_or_bundled
from sparing.runs.folder import RunFolder, load_model_and_step

RECORDS = ("provenance", "data")
"""JSON files of a run that an export in its place needs."""
DIFFERENCES = ("largest_difference", "extra_bits_per_token")


def export(
    call: typer.Context,
    path: Annotated[
        Path | None,
        typer.Argument(metavar="RUN", help=RUN, autocompletion=complete_runs),
    ] = None,
    *,
    format: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="hf: Hugging Face Transformers; onnx: ONNX Runtime.",
            autocompletion=lambda: list(FORMATS),
        ),
    ],
    out: Annotated[
        Path,
        typer.Option("--out", metavar="FOLDER", parser=parse_out_path, help="A new folder."),
    ],
    int8: Annotated[bool, typer.Option("--int8", help="onnx: weights in 8 bits.")] = False,
    chunk: Annotated[
        int, typer.Option(min=2, help="onnx: tokens that the second graph reads at a time.")
    ] = GraphOptions().chunk,
    checkpoint: CheckpointName = None,
    as_json: Json = False,
) -> None:
    """Export a trained model, after checking that its predictions stay the same."""
    if format not in FORMATS:
        raise unknown_name("format", format, FORMATS)
    if format != "onnx":
        check_dependent_options(given_options(call), ONLY_ONNX)
    if out.exists():
        raise UserError(f"{out} exists; choose a new folder with --out")
    folder = run_or_bundled(path)
    folder.require_checkpoints()
    if folder.config().family == "supernet":
        raise UserError(
            f"{folder.path} is a search, whose blocks still compete; write a recipe with `sparing "
            "derive`, train that, and export the result"
        )
    options = GraphOptions(int8=int8, chunk=chunk)
    report = FORMATS[format](folder, out, folder.checkpoint(checkpoint), options)
    for name in DIFFERENCES:
        if name in report and not as_json:
            report[name] = f"{report[name]:.1e}"
    print_report({"folder": str(out), "format": format, **report}, as_json=as_json)


def export_hf(
    folder: RunFolder, out: Path, checkpoint: str, options: GraphOptions
) -> dict[str, Any]:
    """Write a folder for Hugging Face Transformers; return its size and its check."""
    from sparing.export.hf.write import require_transformers, write_hf

    require_transformers()
    return asdict(write_hf(_load(folder, checkpoint), out))


def export_onnx(
    folder: RunFolder, out: Path, checkpoint: str, options: GraphOptions
) -> dict[str, Any]:
    """Write a folder of ONNX graphs; return its size and its check."""
    from sparing.export.onnx.write import require_onnx, write_onnx

    require_onnx()
    return asdict(write_onnx(_load(folder, checkpoint), out, options))


def _load(folder: RunFolder, checkpoint: str) -> Trained:
    model, step = load_model_and_step(folder, device.pick("cpu", "float32"), checkpoint)
    there = [name for name in RECORDS if (folder.path / f"{name}.json").exists()]
    return Trained(
        model=model,
        vocab=folder.vocab(),
        settings=config.to_json(folder.config()),
        results=folder.read("results") if folder.results() else {},
        records={name: folder.read(name) for name in there},
        checkpoint=checkpoint,
        step=step,
    )


Export = Callable[[RunFolder, Path, str, GraphOptions], dict[str, Any]]
FORMATS: dict[str, Export] = {"hf": export_hf, "onnx": export_onnx}
"""What writes each format: from a run to a new folder, the weights of a checkpoint; a report."""
ONLY_ONNX = {"--int8": ("--format onnx",), "--chunk": ("--format onnx",)}
"""Options that only one format has."""
