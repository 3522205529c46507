"""`sparing plot`: figures of runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy.typing as npt
import typer

from sparing import device
from sparing.cli.complete import complete_runs
from sparing.cli.options import (
    CheckpointName,
    Device,
    Json,
    Source,
    check_dependent_options,
    given_options,
    parse_out_path,
)
from sparing.data.text import encode_text
from sparing.data.tokens import Split, split_from_text
from sparing.device import Hardware
from sparing.errors import UserError
from sparing.evaluation.context import context_curve
from sparing.plot.context import (
    ContextCurve,
    draw_context,
    draw_span_history,
    draw_spans,
    head_windows,
    last_spans,
)
from sparing.plot.curves import draw_curves, parse_line
from sparing.plot.figure import figure_path, new_figure, save_figure
from sparing.plot.focus import draw_focus, draw_memory_use, record_attention
from sparing.plot.race import draw_race
from sparing.plot.series import XAxis, origin, read_journals, short_names
from sparing.runs.bundled import run_or_bundled
from sparing.runs.folder import RunFolder, load_model, open_run, prepare_for_run
from sparing.search.run import draw as draw_search
from sparing.terminal import print_json, print_line

What = Literal["curves", "focus", "context", "spans", "pi", "race"]
RUNS = "Folders written by `sparing train`; default: the package's model."
QUERIES = 128
CONTEXT = 1024
WINDOWS = 256
NEEDS = {
    "--x": ("--what curves",),
    "--line": ("--what curves",),
    "--text": ("--what focus",),
    "--length": ("--what focus", "--what context"),
    "--windows": ("--what context",),
    "--checkpoint": ("--what focus", "--what context", "--what spans"),
    "--from": ("--what focus", "--what context"),
}
"""Options that apply to some figures only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlotOptions:
    """Options of the figures."""

    axis: XAxis | None
    lines: Sequence[str]
    text: str | None
    length: int | None
    windows: int | None
    checkpoint: str | None
    source: Path | None
    device: str

    def hardware(self) -> Hardware:
        """The device to run a model on; figures made from journals need none."""
        return device.pick(self.device, "float32")


Length = Annotated[
    int | None, typer.Option(help="Tokens to show (focus), or longest context (context).")
]


def plot(
    call: typer.Context,
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUN...", help=RUNS, autocompletion=complete_runs),
    ] = None,
    what: Annotated[
        What,
        typer.Option(
            help="Training curves, attention (focus), loss against context, spans, "
            "block probabilities of a search (pi), or enwik8 runs against published ones (race)."
        ),
    ] = "curves",
    axis: Annotated[
        XAxis | None, typer.Option("--x", help="Horizontal axis of the curves.")
    ] = None,
    lines: Annotated[
        list[str] | None,
        typer.Option("--line", metavar="BITS:LABEL", help="Horizontal line to compare with."),
    ] = None,
    text: Annotated[
        str | None, typer.Option(help="Text for the attention figure; default: the valid split.")
    ] = None,
    length: Length = None,
    windows: Annotated[
        int | None, typer.Option(help=f"Windows to average over ({WINDOWS} by default).")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            parser=parse_out_path,
            help="File to write; default: in RUN/plots/, or here for the package's model.",
        ),
    ] = None,
    svg: Annotated[bool, typer.Option("--svg", help="Also write SVG.")] = False,
    checkpoint: CheckpointName = None,
    source: Source = None,
    target_device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Plot one or several runs and print the paths of the figures."""
    check_dependent_options(given_options(call) | {f"--what {what}"}, NEEDS)
    # Checks that matplotlib is installed before any work.
    new_figure(1, 1)
    folders = [open_run(run) for run in runs] if runs else [run_or_bundled(None)]
    # The folder of the package is not the user's.
    path = _path(folders, what, out if out or runs else Path(f"{what}.png"))
    options = PlotOptions(
        axis=axis,
        lines=lines or [],
        text=text,
        length=length,
        windows=windows,
        checkpoint=checkpoint,
        source=source,
        device=target_device,
    )
    _report(DRAWERS[what](folders, options, path, svg), as_json=as_json)


def _path(folders: Sequence[RunFolder], what: What, out: Path | None) -> Path:
    if len(folders) > 1 and what in ("focus", "spans", "pi"):
        raise UserError(f"--what {what} takes one run at a time, not {len(folders)}")
    if len(folders) > 1 and out is None:
        raise UserError(f"a figure of {len(folders)} runs needs --out FILE")
    return figure_path(out, folders[0].plots, what)


def _curves(
    folders: Sequence[RunFolder], options: PlotOptions, path: Path, svg: bool
) -> list[Path]:
    lines = [parse_line(line) for line in options.lines]
    runs = [folder.path for folder in folders]
    return save_figure(draw_curves(runs, options.axis or "steps", lines), path, svg=svg)


def _race(folders: Sequence[RunFolder], options: PlotOptions, path: Path, svg: bool) -> list[Path]:
    return save_figure(draw_race([folder.path for folder in folders]), path, svg=svg)


def _pi(folders: Sequence[RunFolder], options: PlotOptions, path: Path, svg: bool) -> list[Path]:
    (folder,) = folders
    return draw_search(folder, path, svg=svg)


def _focus(folders: Sequence[RunFolder], options: PlotOptions, path: Path, svg: bool) -> list[Path]:
    (folder,), hardware = folders, options.hardware()
    model, vocab = load_model(folder, hardware, options.checkpoint), folder.vocab()
    queries = QUERIES if options.length is None else options.length
    focus = record_attention(model, vocab, _ids(folder, options), hardware, queries)
    name, about = short_names([folder.path])[0], origin(folder.path)
    beside = path.with_stem("memory" if path.stem == "focus" else f"{path.stem}-memory")
    return [
        *save_figure(draw_focus(focus, name, about), path, svg=svg),
        *save_figure(draw_memory_use(focus, name, about), beside, svg=svg),
    ]


def _spans(folders: Sequence[RunFolder], options: PlotOptions, path: Path, svg: bool) -> list[Path]:
    (folder,), hardware = folders, options.hardware()
    # An imported run has no journal.
    journals = read_journals([folder.path]) if folder.metrics.exists() else []
    if journals and options.checkpoint is None and not folder.checkpoints.exists():
        # A run published without weights still has the spans in its journal.
        telemetry = last_spans(journals[0])
    else:
        telemetry = load_model(folder, hardware, options.checkpoint).telemetry()
    name, about = short_names([folder.path])[0], origin(folder.path)
    figures = {path: draw_spans(head_windows(telemetry), name, about)}
    for journal in journals:
        figures[path.with_stem(f"{path.stem}-training")] = draw_span_history(journal)
    return [
        file for place, figure in figures.items() for file in save_figure(figure, place, svg=svg)
    ]


def _ids(folder: RunFolder, options: PlotOptions) -> npt.NDArray[Any]:
    if options.text is None:
        return _valid(folder, options.source).ids
    return split_from_text(encode_text(options.text), folder.vocab()).ids


def _context(
    folders: Sequence[RunFolder], options: PlotOptions, path: Path, svg: bool
) -> list[Path]:
    curves, hardware = [], options.hardware()
    for name, folder in zip(short_names([f.path for f in folders]), folders, strict=True):
        split = _valid(folder, options.source)
        length = min(CONTEXT, len(split.ids) - 1) if options.length is None else options.length
        points = context_curve(
            load_model(folder, hardware, options.checkpoint),
            split,
            hardware,
            length=length,
            windows=WINDOWS if options.windows is None else options.windows,
            batch=folder.config().evaluate.batch,
        )
        about = f"{origin(folder.path)} · {points[0].count} places of the valid split"
        curves.append(ContextCurve(name, about, points))
    return save_figure(draw_context(curves), path, svg=svg)


DRAWERS: dict[What, Callable[[Sequence[RunFolder], PlotOptions, Path, bool], list[Path]]] = {
    "curves": _curves,
    "focus": _focus,
    "context": _context,
    "spans": _spans,
    "pi": _pi,
    "race": _race,
}


def _valid(folder: RunFolder, source: Path | None) -> Split:
    return prepare_for_run(folder, folder.config().data, source).split("valid")


def _report(written: Sequence[Path], *, as_json: bool) -> None:
    if as_json:
        print_json({"files": [str(path) for path in written]})
        return
    for path in written:
        print_line(str(path))
