"""`sparing compare`: a recipe with other settings, on equal time or equal steps."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from sparing.cli.complete import complete_recipes
from sparing.cli.options import (
    Corpus,
    Device,
    Json,
    Markdown,
    Minutes,
    Quiet,
    Settings,
    Source,
    check_conflicting_options,
    given_options,
    parse_out_path,
    print_message,
    print_table,
    report_stop,
)
from sparing.errors import UserError
from sparing.experiments.compare import comparison
from sparing.experiments.engine import ExperimentOptions
from sparing.experiments.trial import FAILED, Trial
from sparing.plot.curves import draw_curves
from sparing.plot.figure import has_matplotlib, save_figure
from sparing.plot.series import XAxis
from sparing.runs.start import apply_settings, load_recipe
from sparing.runs.train import TrainOptions


def compare(
    call: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            help="See `sparing recipes`; or a recipe's JSON file.",
            autocompletion=complete_recipes,
        ),
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
    variants: Annotated[
        list[str] | None,
        typer.Option(
            "--variant",
            metavar="[NAME:] A=1; B=2",
            help="A variant: the recipe with these settings. May be repeated.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Trials per variant.")] = 1,
    settings: Settings = None,
    minutes: Minutes = None,
    steps: Annotated[int | None, typer.Option(help="Train each for this many steps.")] = None,
    corpus: Corpus = None,
    source: Source = None,
    device: Device = "auto",
    quiet: Quiet = False,
    markdown: Markdown = False,
    as_json: Json = False,
) -> int:
    """Train a recipe as it is and as each variant; print a table, best first, and draw curves.

    Finished trials are kept: repeat the command to continue where it stopped.
    """
    check_conflicting_options(given_options(call), {"--json": ("--markdown",)})
    if minutes is not None and steps is not None:
        raise UserError("give --minutes or --steps, not both")
    budget = [] if steps is None else [f"train.steps={steps}"]
    base = apply_settings(load_recipe(name), [*(settings or []), *budget], minutes, corpus)
    train = TrainOptions(device=device, source=source, progress=not quiet)
    options = ExperimentOptions(seeds=seeds, train=train, message=print_message)
    experiment = comparison(base, variants or [], out, options)
    signal, record = experiment.run()
    if signal:
        return report_stop(signal)
    print_table(record, experiment.layout, as_json=as_json, markdown=markdown)
    _draw(experiment.finished_trials(), out, "minutes" if base.train.minutes else "steps")
    return int(any(row["status"] == FAILED for row in record["rows"]))


def _draw(trials: Sequence[Trial], out: Path, axis: XAxis) -> None:
    if trials and has_matplotlib():
        groups = [trial.variant.name for trial in trials]
        figure = draw_curves([trial.path for trial in trials], axis, groups=groups)
        save_figure(figure, out / "curves.png")
