"""`sparing bench`: speed and memory, with hardware and commit."""

from pathlib import Path
from typing import Annotated, Any

import typer

from sparing import device
from sparing.bench.generate import GenerateOptions, bench_generate
from sparing.bench.report import append, check_file, report
from sparing.bench.size import Size, sized
from sparing.bench.span import bench_span
from sparing.bench.train import bench_train
from sparing.cli.options import Device, Json, Settings, show
from sparing.device import Hardware
from sparing.models.api import LanguageModel
from sparing.runs.build import build_model
from sparing.runs.config import RunConfig, with_settings
from sparing.runs.folder import load_model, open_run
from sparing.runs.recipes import RECIPES, recipe

app = typer.Typer(help="Benchmarks: train, generate, span.", no_args_is_help=True)

DEFAULT = "enwik8_sha_rnn"

SizeOption = Annotated[
    Size, typer.Option("--size", help="small, full, or auto: small on a CPU, full on a GPU.")
]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="Append the result as a JSON line.")
]


@app.command()
def train(
    name: Annotated[str, typer.Argument(metavar="RECIPE")] = DEFAULT,
    settings: Settings = None,
    size: SizeOption = "auto",
    steps: Annotated[int, typer.Option(help="Steps to measure.")] = 20,
    target: Device = "auto",
    out: Out = None,
    as_json: Json = False,
) -> None:
    """The training step, whole, against its bare matrix work; on random tokens."""
    run = recipe(name)
    hardware = device.pick(target, with_settings(run, settings or []).train.precision)
    run = with_settings(sized(run, size, "train", hardware.device), settings or [])
    _check(out)
    figures = bench_train(run, hardware, steps)
    _tell(report("train", run, hardware, figures), out, as_json=as_json)


@app.command()
def generate(
    name: Annotated[str, typer.Argument(metavar="RECIPE-or-RUN")] = DEFAULT,
    settings: Settings = None,
    size: SizeOption = "auto",
    length: Annotated[int, typer.Option(help="Tokens written in one measured block.")] = 100,
    positions: Annotated[
        list[int] | None,
        typer.Option("--position", help="Where in the text to write; may be repeated."),
    ] = None,
    batch: Annotated[int, typer.Option(help="Texts written side by side.")] = 1,
    target: Device = "auto",
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Reading a prompt, and writing early and late in a text: the cost must not grow."""
    options = GenerateOptions(
        positions=tuple(positions or (10_000, 1_000_000)), length=length, batch=batch
    )
    _check(out)
    hardware = device.pick(target, "float32")
    run, model = _model(name, size, settings or [], hardware)
    figures = bench_generate(model, run.model.vocab_size, hardware, options)
    _tell(report("generate", run, hardware, figures), out, as_json=as_json)


@app.command()
def span(
    name: Annotated[str, typer.Argument(metavar="RECIPE")] = "enwik8_adaptive_span_small",
    settings: Settings = None,
    size: SizeOption = "auto",
    limits: Annotated[
        tuple[int, int], typer.Option("--limits", help="The two limits to compare.")
    ] = (8192, 64),
    steps: Annotated[int, typer.Option(help="Steps to measure under either limit.")] = 10,
    target: Device = "auto",
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Training steps with short spans under a long limit, against those under a short one."""
    run = recipe(name)
    hardware = device.pick(target, with_settings(run, settings or []).train.precision)
    run = with_settings(sized(run, size, "train", hardware.device), settings or [])
    _check(out)
    figures = bench_span(run, hardware, limits, steps)
    _tell(report("span", run, hardware, figures), out, as_json=as_json)


def _model(
    name: str, size: Size, settings: list[str], hardware: Hardware
) -> tuple[RunConfig, LanguageModel]:
    """A trained model as it is, or a recipe's with random weights."""
    path = Path(name)
    if name in RECIPES or not (path.exists() or "/" in name):
        run = with_settings(sized(recipe(name), size, "generate", hardware.device), settings)
        return run, build_model(run, hardware.device)
    folder = open_run(path)
    run = with_settings(folder.config(), settings)
    return run, load_model(folder, hardware, run=run)


def _check(out: Path | None) -> None:
    if out is not None:
        check_file(out)


def _tell(record: dict[str, Any], out: Path | None, *, as_json: bool) -> None:
    if out is not None:
        append(out, record)
    if as_json:
        show(record, as_json=True)
        return
    lines = {name: value for name, value in record.items() if value is not None}
    for place in lines.pop("positions", []):
        lines[f"at {place.pop('position'):,}"] = place
    show(lines, as_json=False)
