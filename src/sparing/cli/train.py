"""`sparing train`: train a recipe in a run folder."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from sparing.cli.complete import complete_recipes
from sparing.cli.options import (
    Corpus,
    Device,
    Minutes,
    Quiet,
    Resume,
    Settings,
    Source,
    parse_out_path,
    print_message,
)
from sparing.errors import UserError
from sparing.launch import current_launch
from sparing.runs.finetune import open_init
from sparing.runs.folder import is_of_launch
from sparing.runs.start import apply_settings, check_start, default_run_path, load_start
from sparing.runs.train import TrainOptions
from sparing.runs.train import train as train_run
from sparing.training.stopping import process_age_s

Checkpoint = Annotated[
    Literal["last", "previous", "best"] | None,
    typer.Option(help="Checkpoint to resume from (last by default), or of --init (best)."),
]
Init = Annotated[
    str | None,
    typer.Option(
        metavar="RUN", help="Start from the weights of a run, or of the package's model (bundled)."
    ),
]
CutJournal = Annotated[
    bool,
    typer.Option("--cut-journal", help="Resume without the unreadable lines of a damaged journal."),
]
Shard = Annotated[bool, typer.Option("--shard", help="Shard weights and optimizer state (FSDP).")]
Timeout = Annotated[float, typer.Option(min=1, help="Seconds that processes wait for each other.")]


def train(
    name: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            help="A name from `sparing recipes`, or a recipe's JSON file.",
            autocompletion=complete_recipes,
        ),
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="PATH", parser=parse_out_path, help="Run folder."),
    ] = None,
    settings: Settings = None,
    minutes: Minutes = None,
    corpus: Corpus = None,
    source: Source = None,
    init: Init = None,
    resume: Resume = False,
    checkpoint: Checkpoint = None,
    cut_journal: CutJournal = False,
    device: Device = "auto",
    quiet: Quiet = False,
    shard: Shard = False,
    timeout: Timeout = TrainOptions().timeout_s,
) -> int:
    """Train a recipe. Ctrl-C stops with a checkpoint, from which --resume continues."""
    check_start(init, checkpoint, resume=resume, cut_journal=cut_journal)
    launch = current_launch()
    if launch.nodes > 1 and launch.id is None:
        raise UserError("on several machines, give torchrun the same --rdzv-id NAME on each")
    path = out or default_run_path(name or ("finetune" if init else ""), resume=resume)
    # A restart by torchrun repeats the original command, which does not say --resume.
    restarted = is_of_launch(path, launch.id)
    resume, checkpoint = resume or restarted, None if restarted else checkpoint
    start = None if init is None or resume else open_init(init, checkpoint)
    run = load_start(name, path, start, resume=resume, corpus=corpus)
    run = apply_settings(run, settings or [], minutes, corpus)
    options = TrainOptions(
        device=device,
        resume=resume,
        checkpoint=checkpoint or "last",
        source=source,
        progress=not quiet and launch.rank == 0,
        head_start_s=process_age_s(),
        timeout_s=timeout,
        sharded=shard,
        restarted=restarted,
        cut_journal=cut_journal,
        init=start,
        exit_on_second_interrupt=True,
    )
    signal = train_run(run, path, options)
    if launch.rank == 0:
        again = f"stopped; to continue: sparing train --resume --out {path}"
        print_message(again if signal else f"done: {path}")
    return 128 + signal if signal else 0
