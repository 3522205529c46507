"""`sparing search`, `derive` and `board`: find out which blocks a network needs."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from sparing import files
from sparing.cli.complete import complete_recipes, complete_runs
from sparing.cli.options import (
    Corpus,
    Device,
    Json,
    Markdown,
    Minutes,
    Quiet,
    Resume,
    Settings,
    Source,
    check_conflicting_options,
    check_dependent_options,
    given_options,
    parse_out_path,
    print_message,
    print_report,
    print_table,
    report_stop,
)
from sparing.errors import UserError
from sparing.experiments.trial import FAILED
from sparing.runs.config import to_json
from sparing.runs.folder import open_run
from sparing.runs.start import apply_settings, default_run_path, load_recipe
from sparing.runs.train import TrainOptions
from sparing.search.board import BOARD, BoardOptions
from sparing.search.board import board as make_board
from sparing.search.cost import Currency, Regime
from sparing.search.derive import derive as derive_run
from sparing.search.derive import explain_pattern
from sparing.search.run import Budget
from sparing.search.run import search as search_run
from sparing.terminal import print_line

Into = Annotated[
    str | None,
    typer.Option("--into", metavar="RECIPE", help="Retrain with this recipe's settings."),
]


NEEDS = {"--currency": ("--budget",), "--regime": ("--budget",)}


def search(
    call: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE", help="See `sparing recipes`.", autocompletion=complete_recipes
        ),
    ] = "",
    budget: Annotated[
        float | None,
        typer.Option(help="Maximum cost as a fraction of the baseline's, such as 0.65."),
    ] = None,
    currency: Annotated[Currency, typer.Option(help="Unit of the budget.")] = "time",
    regime: Annotated[
        Regime, typer.Option(help="Which time to measure; see docs/models/par.md.")
    ] = "train",
    seed: Annotated[int | None, typer.Option(help="Seed of weights and noise.")] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="PATH", parser=parse_out_path, help="Folder of the run."),
    ] = None,
    settings: Settings = None,
    minutes: Minutes = None,
    corpus: Corpus = None,
    source: Source = None,
    resume: Resume = False,
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: Json = False,
) -> int:
    """Train a super-net, find out which blocks it needs, and write a recipe of that network."""
    check_dependent_options(given_options(call), NEEDS)
    path = out or default_run_path(name, resume=resume)
    if resume and (budget is not None or seed is not None):
        raise UserError("--resume keeps the search's own budget and seed; leave them out")
    run = load_recipe(name, path, resume=resume)
    more = [] if seed is None else [f"train.seed={seed}"]
    run = apply_settings(run, [*(settings or []), *more], minutes, corpus)
    options = TrainOptions(
        device=device,
        resume=resume,
        source=source,
        progress=not quiet,
        exit_on_second_interrupt=True,
    )
    limit = None if budget is None else Budget(share=budget, currency=currency, regime=regime)
    signal, found = search_run(run, path, options, limit)
    if signal:
        print_line(f"stopped; continue with: sparing search --resume --out {path}", err=True)
        return 128 + signal
    print_report({"run": str(path), **found}, as_json=as_json)
    return 0


def derive(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="Folder written by `sparing search`.",
            autocompletion=complete_runs,
        ),
    ],
    into: Into = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            parser=parse_out_path,
            help="Recipe to write; RUN/recipe.json by default.",
        ),
    ] = None,
    checkpoint: Annotated[
        Literal["last", "previous", "best"],
        typer.Option(help="Checkpoint whose preferences count."),
    ] = "last",
    as_json: Json = False,
) -> None:
    """Write the network a search found, as a recipe for `sparing train`."""
    folder = open_run(run)
    found = derive_run(folder, None if into is None else load_recipe(into), checkpoint)
    path = out or run / "recipe.json"
    if path.suffix != ".json":
        raise UserError(f"{path}: a recipe's file name must end in .json")
    pattern = found.model.pattern
    about = explain_pattern(folder, pattern, checkpoint)
    files.write_json(path, to_json(found))
    print_report({"pattern": pattern, **about, "recipe": str(path)}, as_json=as_json)


def board(
    call: typer.Context,
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Folders written by `sparing search`.",
            autocompletion=complete_runs,
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            metavar="PATH",
            parser=parse_out_path,
            help="Folder for the board and its runs.",
        ),
    ],
    into: Into = None,
    seeds: Annotated[int, typer.Option(help="Trials per network.")] = 2,
    random_networks: Annotated[
        int, typer.Option("--random", help="Random networks with the cost of the searched one.")
    ] = 2,
    settings: Settings = None,
    minutes: Minutes = None,
    source: Source = None,
    device: Device = "auto",
    quiet: Quiet = False,
    markdown: Markdown = False,
    as_json: Json = False,
) -> int:
    """Retrain searched networks beside rules of thumb and random ones; a table and a picture.

    Finished trials are kept: repeat the command to continue where it stopped.
    """
    check_conflicting_options(given_options(call), {"--json": ("--markdown",)})
    base = derive_run(open_run(runs[0])) if into is None else load_recipe(into)
    base = apply_settings(base, settings or [], minutes, None)
    train = TrainOptions(device=device, source=source, progress=not quiet)
    options = BoardOptions(
        seeds=seeds, random_networks=random_networks, train=train, message=print_message
    )
    signal, record = make_board(runs, base, out, options)
    if signal:
        return report_stop(signal)
    print_table(record, BOARD, as_json=as_json, markdown=markdown)
    return int(any(row["status"] == FAILED for row in record["rows"]))
