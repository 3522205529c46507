"""`sparing compare`: settings side by side, on equal time or equal steps."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from sparing.cli.options import (
    Device,
    Json,
    Settings,
    Source,
    parse_out_path,
    print_table,
    report_stop,
)
from sparing.cli.train import apply_settings, load_recipe
from sparing.errors import UserError
from sparing.experiments.compare import CompareOptions, Comparison
from sparing.experiments.compare import compare as run_comparison
from sparing.experiments.leaderboard import table
from sparing.experiments.trial import FAILED, Trial
from sparing.experiments.variants import variants
from sparing.plot.curves import draw_curves
from sparing.plot.figure import save
from sparing.plot.series import XAxis
from sparing.runs.train import TrainOptions


def compare(
    name: Annotated[
        str,
        typer.Argument(metavar="RECIPE", help="See `sparing recipes`; or a recipe's JSON file."),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            metavar="PATH",
            parser=parse_out_path,
            help="Folder for the table and its runs.",
        ),
    ],
    tries: Annotated[
        list[str] | None,
        typer.Option(
            "--try",
            metavar="[NAME:] A=1; B=2",
            help="One more variant: the recipe with these settings.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Trainings of every variant.")] = 1,
    settings: Settings = None,
    minutes: Annotated[
        float | None, typer.Option(help="Train each this long, annealed to the end of it.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Train each for so many steps.")] = None,
    corpus: Annotated[
        str | None, typer.Option("--data", help="Corpus name, or a text file or folder of yours.")
    ] = None,
    source: Source = None,
    device: Device = "auto",
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bars.")] = False,
    as_json: Json = False,
) -> int:
    """Train a recipe as it is, and with other settings, alike; a table, best first, and curves.

    What is finished stays: the same command goes on where it was stopped.
    """
    if minutes is not None and steps is not None:
        raise UserError("--minutes and --steps exclude each other")
    budget = [] if steps is None else [f"train.steps={steps}"]
    base = apply_settings(load_recipe(name), [*(settings or []), *budget], minutes, corpus)
    train = TrainOptions(device=device, source=source, progress=not quiet)
    options = CompareOptions(seeds=seeds, train=train, tell=_tell)
    comparison = Comparison(variants(base, tries or []), out, options)
    signal, record = run_comparison(comparison)
    if signal:
        return report_stop(signal)
    print_table(record, table, as_json=as_json)
    _draw(comparison.finished(), out, "minutes" if base.train.minutes else "steps")
    return int(any(row["status"] == FAILED for row in record["rows"]))


def _tell(line: str) -> None:
    # Trainings go on when nobody watches any more.
    with suppress(OSError):
        typer.echo(line, err=True)


def _draw(trials: Sequence[Trial], out: Path, axis: XAxis) -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return
    if trials:
        names = [trial.variant.name for trial in trials]
        save(draw_curves([trial.path for trial in trials], axis, kin=names), out / "curves.png")
