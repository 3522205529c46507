"""`sparing train`: one run, in its own folder."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from sparing.cli.options import Device, Settings, Source, out_path
from sparing.data.corpora import CORPORA
from sparing.errors import UserError
from sparing.files import read_object
from sparing.launch import launch, launched_at
from sparing.runs.config import RunConfig, from_json, with_settings
from sparing.runs.folder import is_of_launch, open_run
from sparing.runs.recipes import recipe
from sparing.runs.train import TrainOptions
from sparing.runs.train import train as train_run
from sparing.train.stopping import process_age_s


def train(
    name: Annotated[
        str,
        typer.Argument(metavar="RECIPE", help="See `sparing recipes`; or a recipe's JSON file."),
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="PATH", parser=out_path, help="Folder of the run."),
    ] = None,
    settings: Settings = None,
    minutes: Annotated[
        float | None, typer.Option(help="Train this long, annealed to the end of it.")
    ] = None,
    corpus: Annotated[
        str | None, typer.Option("--data", help="Corpus name, or a text file or folder of yours.")
    ] = None,
    source: Source = None,
    resume: Annotated[bool, typer.Option(help="Go on with the run in --out.")] = False,
    checkpoint: Annotated[
        Literal["last", "previous", "best"] | None,
        typer.Option(help="Checkpoint to resume from; last by default."),
    ] = None,
    device: Device = "auto",
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
    shard: Annotated[
        bool, typer.Option("--shard", help="Cut weights and optimizer state up between processes.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds several processes wait for each other.")
    ] = TrainOptions().timeout_s,
) -> int:
    """Train a recipe. Ctrl-C ends it with a checkpoint; --resume goes on from there."""
    if checkpoint is not None and not resume:
        raise UserError("--checkpoint goes with --resume")
    if launch().nodes > 1 and launch().id is None:
        raise UserError("several machines need torchrun --rdzv-id NAME, the same on all of them")
    path = out or default_path(name, resume=resume)
    # A restart repeats the command, which says nothing of what has happened since.
    restarted = is_of_launch(path, launch().id)
    resume, checkpoint = resume or restarted, None if restarted else checkpoint
    run = settled(named(name, path, resume=resume), settings or [], minutes, corpus)
    options = TrainOptions(
        device=device,
        resume=resume,
        checkpoint=checkpoint or "last",
        source=source,
        progress=not quiet and launch().rank == 0,
        head_start_s=process_age_s(),
        timeout_s=timeout,
        sharded=shard,
        restarted=restarted,
    )
    signal = train_run(run, path, options)
    if launch().rank == 0:
        again = f"stopped; go on with: sparing train --resume --out {path}"
        typer.echo(again if signal else f"done: {path}", err=True)
    return 128 + signal if signal else 0


def named(name: str, path: Path | None = None, *, resume: bool = False) -> RunConfig:
    """The run a name stands for: a recipe, a recipe's file, or what is to be resumed in `path`."""
    if not resume or path is None:
        if not name:
            raise UserError("name a recipe; `sparing recipes` lists them")
        return recipe_file(Path(name)) if name.endswith(".json") else recipe(name)
    run = open_run(path).config()
    if name and name != run.recipe:
        raise UserError(f"{path} was started from recipe {run.recipe!r}, not {name!r}")
    return run


def recipe_file(path: Path) -> RunConfig:
    """A run's complete settings from a file, such as `sparing derive` writes."""
    try:
        return from_json(read_object(path))
    except UserError as problem:
        if str(problem).startswith(str(path)):
            raise
        raise UserError(f"{path}: {problem}") from None


def settled(
    run: RunConfig, settings: list[str], minutes: float | None, corpus: str | None
) -> RunConfig:
    """The run with what the command line changes about it."""
    if minutes is not None:
        settings = _only_budget(run, [*settings, f"train.minutes={minutes}"])
    if corpus is not None:
        settings = [*settings, f"data.corpus={_lasting(corpus)}"]
    if any(s.replace(" ", "").startswith("model.vocab_size=") for s in settings):
        raise UserError("model.vocab_size comes from the data; set data.vocab or data.vocab_size")
    if any(s.replace(" ", "").startswith(("train.steps=", "train.epochs=")) for s in settings):
        settings = _only_budget(run, settings)
    return with_settings(run, settings)


def _lasting(corpus: str) -> str:
    """A corpus's name as it is; a path made absolute, so that it holds in other folders too."""
    if not corpus.strip():
        raise UserError("--data is empty; name a corpus, or a text file or folder of yours")
    path = Path(corpus)
    return str(path.resolve()) if corpus not in CORPORA and path.exists() else corpus


def _only_budget(run: RunConfig, settings: list[str]) -> list[str]:
    """A budget given by hand replaces the recipe's own, in whatever unit that was."""
    named = {s.partition("=")[0].strip() for s in settings}
    others = [
        f"train.{unit}=none"
        for unit in ("steps", "epochs", "minutes")
        if getattr(run.train, unit) is not None and f"train.{unit}" not in named
    ]
    return [*settings, *others]


def default_path(name: str, *, resume: bool) -> Path:
    """A folder named after the recipe and the moment."""
    if resume:
        raise UserError("--resume needs --out, the folder of the run to go on with")
    if launch().nodes > 1:
        raise UserError("several machines need --out, a folder that all of them see")
    stamp = launched_at().strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{Path(name).stem or 'run'}-{stamp}"
