"""`sparing compress` and `decompress`: files coded with what a model predicts, without loss."""

import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from tqdm import tqdm

from sparing import device
from sparing.cli.complete import complete_runs
from sparing.cli.options import (
    RUN,
    CheckpointName,
    Device,
    Json,
    check_dependent_options,
    given_options,
    parse_out_path,
    print_message,
)
from sparing.compress.codec import Progress
from sparing.compress.compressor import Compressor, MakeProgress
from sparing.compress.container import SUFFIX, read_container
from sparing.compress.lanes import Learning
from sparing.errors import UserError
from sparing.files import atomic_write, check_writable, write_bytes
from sparing.inputs import read_input
from sparing.runs.bundled import run_or_bundled
from sparing.runs.folder import load_model
from sparing.terminal import print_bytes, print_json, print_line
from sparing.units import pluralize

STREAM = Path("-")
FileName = Annotated[Path, typer.Argument(metavar="FILE", help="A file, or - for standard input.")]
OutPath = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="FILE", parser=parse_out_path, help="New file, or - for standard output."
    ),
]
ModelPath = Annotated[
    Path | None,
    typer.Option("--model", metavar="RUN", help=RUN, autocompletion=complete_runs),
]
NEEDS = {"--rate": ("--learn",), "--chunk": ("--learn",)}
"""Options that need another one."""


def compress(
    call: typer.Context,
    path: FileName,
    out: OutPath = None,
    run: ModelPath = None,
    checkpoint: CheckpointName = None,
    lanes: Annotated[
        int | None,
        typer.Option(help="Parts coded in parallel; more are faster but take more bits."),
    ] = None,
    learn: Annotated[
        bool, typer.Option("--learn", help="Adapt the model to the text while coding.")
    ] = False,
    rate: Annotated[float, typer.Option(help="Learning rate of --learn.")] = Learning().rate,
    chunk: Annotated[
        int, typer.Option(help="Tokens per lane between updates of --learn.")
    ] = Learning().chunk,
    verify: Annotated[
        bool, typer.Option("--verify", help="Decode and compare before writing the file.")
    ] = False,
    where: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Compress a file losslessly; `sparing decompress` restores it with the same model."""
    check_dependent_options(given_options(call), NEEDS)
    learning = Learning(chunk=chunk, rate=rate) if learn else None
    target = _target(path, out, Path(f"{path.name}{SUFFIX}"), as_json=as_json)
    data, compressor = read_input(path), _open_compressor(run, checkpoint, where)
    with ExitStack() as bars:
        show = _bars(bars)
        started_at = time.perf_counter()
        blob = compressor.compress(data, lanes=lanes, learning=learning, progress=show)
        elapsed_s = time.perf_counter() - started_at
        proof = compressor.verify(blob, data, progress=show) if verify else None
    _hand_over(target, blob)
    report = _report(target, len(data), len(blob), elapsed_s)
    header, _ = read_container(blob, str(target))
    report |= {"lanes": header.lanes, "threads": header.threads, "learn": learn}
    if verify:
        report["verified"] = True
    if proof is not None:
        report |= {
            "coded_bits": proof.coded_bits,
            "evaluated_bits": proof.evaluated_bits,
            "difference": proof.difference,
        }
    _print_report(report, target, as_json=as_json)


def decompress(
    path: FileName,
    out: OutPath = None,
    run: ModelPath = None,
    checkpoint: CheckpointName = None,
    where: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Restore a file compressed by `sparing compress`, with the same model."""
    usual = Path(path.name.removesuffix(SUFFIX)) if path.suffix == SUFFIX else None
    target = _target(path, out, usual, as_json=as_json)
    blob, name = read_input(path), "standard input" if path == STREAM else str(path)
    # Refused at once, before the model is loaded.
    read_container(blob, name)
    compressor = _open_compressor(run, checkpoint, where)
    started_at = time.perf_counter()
    with ExitStack() as bars:
        data = compressor.decompress(blob, name=name, progress=_bars(bars))
    elapsed_s = time.perf_counter() - started_at
    _hand_over(target, data)
    report = _report(target, len(data), len(blob), elapsed_s)
    _print_report(report, target, as_json=as_json)


def _target(path: Path, out: Path | None, usual: Path | None, *, as_json: bool) -> Path:
    """Where the result goes: a new file, or standard output where the input came from a pipe."""
    if out is None and path != STREAM:
        if usual is None:
            raise UserError(f"{path} does not end in {SUFFIX}; name the new file with --out")
        out = path.parent / usual
    target = STREAM if out is None else out
    if target == STREAM:
        if as_json:
            raise UserError("--json and the data would both go to standard output; add --out FILE")
        if sys.stdout.isatty():
            raise UserError("the data would go to the terminal; add --out FILE")
    _refuse_existing(target)
    if target != STREAM:
        check_writable(target)
    return target


def _refuse_existing(target: Path) -> None:
    if target != STREAM and (target.exists() or target.is_symlink()):
        raise UserError(f"{target} exists; remove it, or name another file with --out")


def _open_compressor(run: Path | None, checkpoint: str | None, where: str) -> Compressor:
    folder, hardware = run_or_bundled(run), device.pick(where, "float32")
    return Compressor(load_model(folder, hardware, checkpoint), folder.vocab(), hardware)


def _bars(opened: ExitStack) -> MakeProgress:
    """What opens a bar with rate and time left; shown on a terminal only."""

    def open_bar(what: str, tokens: int) -> Progress:
        # One bar at a time: that of the stage before has ended, and so has its clock.
        opened.close()
        bar = tqdm(total=tokens, unit="B", unit_scale=True, desc=what, disable=None)
        opened.callback(bar.close)
        advance: Progress = bar.update
        return advance

    return open_bar


def _hand_over(target: Path, data: bytes) -> None:
    if target == STREAM:
        print_bytes(data)
        return
    # The work may have taken hours, and somebody else may have made the file by now.
    _refuse_existing(target)
    with atomic_write(target) as scratch:
        write_bytes(scratch, data)


def _report(target: Path, plain: int, compressed: int, elapsed_s: float) -> dict[str, Any]:
    return {
        "file": str(target),
        "bytes": plain,
        "compressed_bytes": compressed,
        "ratio": plain / compressed,
        "bits_per_byte": 8 * compressed / plain if plain else None,
        "elapsed_s": elapsed_s,
        "bytes_per_s": plain / max(elapsed_s, 1e-9),
    }


def _print_report(report: dict[str, Any], target: Path, *, as_json: bool) -> None:
    if as_json:
        print_json(report)
        return
    plain, compressed = report["bytes"], report["compressed_bytes"]
    say = print_message if target == STREAM else print_line
    per_byte = f", {report['bits_per_byte']:.4f} bits per byte" if plain else ""
    say(
        f"{target}: {pluralize(plain, 'byte')}, compressed {compressed:,}: ratio "
        f"{report['ratio']:.2f}{per_byte}, {report['bytes_per_s']:,.0f} bytes/s"
    )
    if report.get("verified"):
        say("verified: it decodes to the same bytes")
    if "difference" in report:
        say(
            f"coded in {report['coded_bits']:,} bits; evaluated at "
            f"{report['evaluated_bits']:,.0f} bits: {report['difference']:+.3%}"
        )
