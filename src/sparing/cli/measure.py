"""Options and reports that the benchmarks of `sparing bench` share."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from sparing import device
from sparing.bench.report import append_record, check_out_file, make_report
from sparing.bench.size import Purpose, Size, resolve_size, small
from sparing.bench.timing import threads
from sparing.cli.options import parse_out_path, print_report
from sparing.device import Hardware
from sparing.launch import current_launch
from sparing.runs.config import RunConfig, with_settings
from sparing.runs.recipes import recipe
from sparing.terminal import print_line

Recipe = Annotated[str, typer.Argument(metavar="RECIPE", help="See `sparing recipes`.")]
SizeOption = Annotated[
    Size, typer.Option("--size", help="small, full, or auto: small on a CPU, full on a GPU.")
]
Threads = Annotated[
    int | None, typer.Option("--threads", help="CPU threads; default: torch's choice.")
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="FILE", parser=parse_out_path, help="Append the result as a JSON line."
    ),
]


class BenchRequest(NamedTuple):
    """Options common to all benchmarks of a recipe."""

    name: str
    settings: list[str]
    size: Size
    threads: int | None
    device: str
    out: Path | None
    as_json: bool


def measure(
    kind: str,
    purpose: Purpose,
    request: BenchRequest,
    work: Callable[[RunConfig, Hardware], dict[str, Any]],
) -> None:
    """Size a recipe for the machine, run the benchmark and report it."""
    run = recipe(request.name)
    hardware = device.pick(request.device, with_settings(run, request.settings).train.precision)
    size = resolve_size(request.size, hardware.device)
    run = with_settings(small(run, purpose) if size == "small" else run, request.settings)
    check_out_file(request.out)
    with threads(request.threads):
        record = make_report(kind, run, hardware, {"size": size, **work(run, hardware)})
    if current_launch().rank == 0:
        print_record(record, request.out, as_json=request.as_json)


def print_record(record: dict[str, Any], out: Path | None, *, as_json: bool) -> None:
    """Append the record to a file, if one is given, and print it."""
    if out is not None:
        append_record(out, record)
    if as_json:
        print_report(record, as_json=True)
        return
    lines = dict(record)
    for row in lines.pop("work", None) or []:
        print_line(f"{row['ms']:10.3f} ms {row['calls']:8,.0f} x  {row['what']}")
    for found in lines.pop("positions", None) or []:
        figures = {name: value for name, value in found.items() if name != "position"}
        lines[f"at {found['position']:,}"] = figures
    print_report(lines, as_json=False)
