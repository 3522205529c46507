"""The main command: its subcommands, and errors as one line with exit status 2."""

import errno
import sys
from collections.abc import Sequence

import typer

from sparing import __version__
from sparing.cli.messages import reword
from sparing.cli.verbs import LazyGroup
from sparing.errors import LostProcessError, UserError, is_out_of_memory
from sparing.launch import Launch, current_launch, note_refusal
from sparing.terminal import print_line

app = typer.Typer(
    name="sparing",
    help="Language models that spend attention sparingly.",
    cls=LazyGroup,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
DISTRIBUTED = ("train", "evaluate", "bench")
"""Commands that may run under torchrun; the others would only run several times."""
UNPARSED = (["info"], ["info", "--json"])
"""Command lines that are answered without a parser: setting it up takes longer than the answer."""


@app.callback(invoke_without_command=True)
def options(
    call: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version."),
    debug: bool = typer.Option(False, "--debug", help="Show tracebacks."),
) -> None:
    """Language models that spend attention sparingly."""
    if version:
        print_line(__version__)
        raise typer.Exit
    if current_launch().size > 1 and call.invoked_subcommand not in DISTRIBUTED:
        raise UserError(
            f"{call.invoked_subcommand} runs in one process only; start it without torchrun"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        status = _run(words)
    except Exception as problem:
        if type(problem).__name__ == "NoArgsIsHelpError":
            print_line(str(problem))
            return 0
        message = _message(problem)
        if "--debug" in words or message is None:
            raise
        if line := _error_line(problem, message):
            print_line(line, err=True)
        if _is_refusal(problem):
            note_refusal(f"sparing: {message}")
        return 2
    except KeyboardInterrupt:
        print_line("sparing: interrupted", err=True)
        return 130
    return status if isinstance(status, int) else 0


def _run(words: list[str]) -> object:
    """Parse the command line and run the command in it."""
    if words in UNPARSED and current_launch().size == 1:
        from sparing.cli.info import info

        info(as_json="--json" in words)
        return 0
    command = typer.main.get_command(app)
    return command.main(args=words, prog_name="sparing", standalone_mode=False)


def _is_refusal(problem: Exception) -> bool:
    """Whether the command would fail again, unlike after a lost process or on a full disk."""
    return not (isinstance(problem, LostProcessError | OSError) or is_out_of_memory(problem))


def _error_line(problem: Exception, message: str) -> str:
    """The line to print for an error; with the rank, which may be the only one that failed."""
    try:
        launch = current_launch()
    except UserError:
        launch = Launch()
    if launch.local_rank and not isinstance(problem, UserError | OSError):
        # A usage error: the first process of this machine reports the same one.
        return ""
    if launch.rank == 0 or isinstance(problem, LostProcessError):
        return f"sparing: {message}"
    return f"sparing: {launch.describe()}: {message}"


def _message(problem: Exception) -> str | None:
    """The message for the user; None for a bug in this program."""
    if isinstance(problem, UserError):
        return " ".join(str(problem).split())
    # Typer vendors click's exceptions under a private name; all of them have this method.
    explain = getattr(problem, "format_message", None)
    if callable(explain):
        known = getattr(getattr(getattr(problem, "ctx", None), "command", None), "commands", ())
        return reword(" ".join(str(explain()).split()), known)
    if isinstance(problem, OSError):
        return _file_message(problem)
    if is_out_of_memory(problem):
        return "out of memory; choose a smaller model, batch or segment"
    return None


def _file_message(problem: OSError) -> str:
    where = f"{problem.filename}: " if problem.filename else ""
    what, advice = problem.strerror or str(problem), getattr(problem, "__notes__", [])
    if problem.errno in (errno.ENOSPC, errno.EDQUOT):
        what = "no space left on the device; no partial file was kept"
        advice = advice or ["make room and try again"]
    elif problem.errno == errno.EEXIST:
        what = "a file of this name is in the way"
    return where + "; ".join([what, *advice])
