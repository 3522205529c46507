"""`sparing train`: train a recipe in a run folder."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from sparing.cli.options import Device, Settings, Source, parse_out_path, print_message
from sparing.data.corpora import CORPORA
from sparing.errors import UserError
from sparing.launch import current_launch, launched_at
from sparing.runs.config import RunConfig, read_config, with_settings
from sparing.runs.folder import is_of_launch, open_run
from sparing.runs.recipes import recipe
from sparing.runs.train import TrainOptions
from sparing.runs.train import train as train_run
from sparing.training.stopping import process_age_s


def train(
    name: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE", help="A name from `sparing recipes`, or a recipe's JSON file."
        ),
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="PATH", parser=parse_out_path, help="Run folder."),
    ] = None,
    settings: Settings = None,
    minutes: Annotated[
        float | None, typer.Option(help="Train this long; the schedule ends with it.")
    ] = None,
    corpus: Annotated[
        str | None, typer.Option("--data", help="Corpus name, or your own text file or folder.")
    ] = None,
    source: Source = None,
    resume: Annotated[bool, typer.Option(help="Continue the run in --out.")] = False,
    checkpoint: Annotated[
        Literal["last", "previous", "best"] | None,
        typer.Option(help="Checkpoint to resume from; last by default."),
    ] = None,
    cut_journal: Annotated[
        bool,
        typer.Option("--cut-journal", help="Resume without the unreadable lines of the journal."),
    ] = False,
    device: Device = "auto",
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
    shard: Annotated[
        bool, typer.Option("--shard", help="Shard weights and optimizer state (FSDP).")
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds that processes wait for each other.")
    ] = TrainOptions().timeout_s,
) -> int:
    """Train a recipe. Ctrl-C stops with a checkpoint, from which --resume continues."""
    if (checkpoint is not None or cut_journal) and not resume:
        raise UserError(f"--{'checkpoint' if checkpoint else 'cut-journal'} needs --resume")
    launch = current_launch()
    if launch.nodes > 1 and launch.id is None:
        raise UserError("on several machines, give torchrun the same --rdzv-id NAME on each")
    path = out or default_run_path(name, resume=resume)
    # A restart by torchrun repeats the original command, which does not say --resume.
    restarted = is_of_launch(path, launch.id)
    resume, checkpoint = resume or restarted, None if restarted else checkpoint
    run = apply_settings(load_recipe(name, path, resume=resume), settings or [], minutes, corpus)
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
    )
    signal = train_run(run, path, options)
    if launch.rank == 0:
        again = f"stopped; to continue: sparing train --resume --out {path}"
        print_message(again if signal else f"done: {path}")
    return 128 + signal if signal else 0


def load_recipe(name: str, path: Path | None = None, *, resume: bool = False) -> RunConfig:
    """Load a recipe by name or from a JSON file, or the config of the run to resume in `path`."""
    if not resume or path is None:
        if not name:
            raise UserError("name a recipe; `sparing recipes` lists them")
        return read_config(Path(name)) if name.endswith(".json") else recipe(name)
    run = open_run(path).config()
    if name and name != run.recipe:
        raise UserError(f"{path} was started from recipe {run.recipe!r}, not {name!r}")
    return run


def apply_settings(
    run: RunConfig, settings: list[str], minutes: float | None, corpus: str | None
) -> RunConfig:
    """Return the run with the settings of the command line applied."""
    if minutes is not None:
        settings = _replace_budget(run, [*settings, f"train.minutes={minutes}"])
    if corpus is not None:
        settings = [*settings, f"data.corpus={_absolute_corpus(corpus)}"]
    if any(s.replace(" ", "").startswith("model.vocab_size=") for s in settings):
        raise UserError("model.vocab_size comes from the data; set data.vocab or data.vocab_size")
    if any(s.replace(" ", "").startswith(("train.steps=", "train.epochs=")) for s in settings):
        settings = _replace_budget(run, settings)
    return with_settings(run, settings)


def _absolute_corpus(corpus: str) -> str:
    """Return a corpus name unchanged and a path as an absolute one, valid in other folders too."""
    if not corpus.strip():
        raise UserError("--data is empty; name a corpus, or your own text file or folder")
    path = Path(corpus)
    return str(path.resolve()) if corpus not in CORPORA and path.exists() else corpus


def _replace_budget(run: RunConfig, settings: list[str]) -> list[str]:
    """Make the given budget replace the recipe's own, whatever unit that has."""
    given = {s.partition("=")[0].strip() for s in settings}
    others = [
        f"train.{unit}=none"
        for unit in ("steps", "epochs", "minutes")
        if getattr(run.train, unit) is not None and f"train.{unit}" not in given
    ]
    return [*settings, *others]


def default_run_path(name: str, *, resume: bool) -> Path:
    """A folder named after the recipe and the time."""
    if resume:
        raise UserError("--resume needs --out, the folder of the run to continue")
    if current_launch().nodes > 1:
        raise UserError("on several machines, give --out, a folder that all of them share")
    stamp = launched_at().strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{Path(name).stem or 'run'}-{stamp}"
