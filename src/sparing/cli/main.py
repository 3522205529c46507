"""The command line's entry: verbs, and errors as one line with exit status 2."""

import errno
import sys
from collections.abc import Sequence

import typer

from sparing import __version__
from sparing.cli import (
    bench,
    compare,
    data,
    evaluate,
    generate,
    import_,
    info,
    plot,
    results,
    score,
    search,
    train,
)
from sparing.cli.messages import name_values, reworded
from sparing.device import is_out_of_memory
from sparing.errors import LostError, UserError
from sparing.launch import Launch, launch

app = typer.Typer(
    name="sparing",
    help="Language models that spend attention sparingly.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(data.app, name="data")
app.command("recipes")(info.recipes)
app.command("info")(info.info)
app.command("train")(train.train)
app.command("compare")(compare.compare)
app.command("evaluate")(evaluate.evaluate)
app.command("generate")(generate.generate)
app.command("score")(score.score)
app.command("search")(search.search)
app.command("derive")(search.derive)
app.command("board")(search.board)
app.command("results")(results.results)
app.command("plot")(plot.plot)
app.command("import")(import_.import_)
app.add_typer(bench.app, name="bench")

JOINT = ("train", "evaluate", "bench")
"""What several processes may do together; the rest they would only do twice."""


@app.callback(invoke_without_command=True)
def options(
    call: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version."),
    debug: bool = typer.Option(False, "--debug", help="Show tracebacks."),
) -> None:
    """Language models that spend attention sparingly."""
    if version:
        typer.echo(__version__)
        raise typer.Exit
    if launch().size > 1 and call.invoked_subcommand not in JOINT:
        raise UserError(f"{call.invoked_subcommand} is for one process; run it without torchrun")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    command = typer.main.get_command(app)
    name_values(command)
    try:
        status = command.main(args=words, prog_name="sparing", standalone_mode=False)
    except Exception as problem:
        if type(problem).__name__ == "NoArgsIsHelpError":
            typer.echo(str(problem))
            return 0
        sentence = _sentence(problem)
        if "--debug" in words or sentence is None:
            raise
        if line := _line(problem, sentence):
            typer.echo(line, err=True)
        return 2
    except KeyboardInterrupt:
        typer.echo("sparing: interrupted", err=True)
        return 130
    return status if isinstance(status, int) else 0


def _line(problem: Exception, sentence: str) -> str:
    """What this process says of a failure: it may be the only one that has failed."""
    try:
        place = launch()
    except UserError:
        place = Launch()
    if place.local_rank and not isinstance(problem, UserError | OSError):
        # A command that cannot be read: the first process of this machine was given the same one.
        return ""
    if place.rank == 0 or isinstance(problem, LostError):
        return f"sparing: {sentence}"
    return f"sparing: {place.describe()}: {sentence}"


def _sentence(problem: Exception) -> str | None:
    """What to tell the user, or None for a fault of ours."""
    if isinstance(problem, UserError):
        return " ".join(str(problem).split())
    # Typer keeps a copy of click's exceptions under a private name; all of them explain themselves.
    explain = getattr(problem, "format_message", None)
    if callable(explain):
        known = getattr(getattr(getattr(problem, "ctx", None), "command", None), "commands", ())
        return reworded(" ".join(str(explain()).split()), known)
    if isinstance(problem, OSError):
        return _about_files(problem)
    if is_out_of_memory(problem):
        return "that does not fit into this machine's memory; choose smaller sizes"
    return None


def _about_files(problem: OSError) -> str:
    where = f"{problem.filename}: " if problem.filename else ""
    if problem.errno == errno.ENOSPC:
        return f"{where}no space left on the device; nothing half-written was kept"
    return f"{where}{problem.strerror or problem}"
