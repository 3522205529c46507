"""The commands, one line each. A command is imported when it is used: torch takes seconds."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from sparing.cli.complete import complete_recipes, complete_runs
from sparing.cli.messages import finish_command

VERBS = {
    "recipes": ("info.recipes", "List the recipes."),
    "info": ("info.info", "Size, cost, training and results of a model."),
    "train": ("train.train", "Train a recipe in a run folder."),
    "compare": ("compare.compare", "Compare a recipe with variants of it."),
    "verify": ("verify.verify", "Train a recipe and compare it with its published curve."),
    "evaluate": ("evaluate.evaluate", "Score a split of a run's text exactly."),
    "generate": ("generate.generate", "Generate text after a prompt."),
    "score": ("score.score", "Log-probability and bits per byte of sentences."),
    "compress": ("compress.compress", "Compress a file losslessly with a language model."),
    "decompress": ("compress.decompress", "Restore a compressed file."),
    "search": ("search.search", "Search for the blocks that a network needs."),
    "derive": ("search.derive", "Write the network that a search found as a recipe."),
    "board": ("search.board", "Retrain searched networks, and baselines to compare them with."),
    "results": ("results.results", "Print one table of all runs below a folder."),
    "plot": ("plot.plot", "Plot runs."),
    "import": ("import_.import_", "Convert a released checkpoint to a run."),
    "export": ("export.export", "Export a model to Hugging Face Transformers or ONNX."),
    "serve": ("serve.serve", "Serve models over an OpenAI-compatible HTTP API."),
    "data": ("data.app", "Corpora: list, get, prepare; cut-offs of an adaptive softmax."),
    "bench": ("bench.app", "Measure speed and memory."),
}
"""Every command by name: the function or group of commands in this package, and a line of help."""

RUN_COMMANDS = ("evaluate", "generate", "score", "plot", "export", "serve", "derive", "board")
COMPLETIONS = {
    **dict.fromkeys(("train", "verify", "compare", "search"), complete_recipes),
    **dict.fromkeys(RUN_COMMANDS, complete_runs),
}
"""What the Tab key offers as arguments of commands that import torch."""


class LazyGroup(TyperGroup):
    """The main command, which imports the others when they are used."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # The library asks for a mapping that can be changed, and does not change it.
        commands: Any = LazyCommands(self)
        self.commands = commands

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of the commands, in the order of the table."""
        return list(VERBS)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in VERBS.items()])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that `args` begin with; a light one in its place while Tab waits."""
        name = args[0]
        # A word after an option may be its value, which only the command itself can complete.
        if ctx.resilient_parsing and name in COMPLETIONS and not args[-1].startswith("-"):
            return name, _stand_in(name), args[1:]
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Complete the name of a command."""
        self.commands = {name: TyperCommand(name, help=line) for name, (_, line) in VERBS.items()}
        return super().shell_complete(ctx, incomplete)


class LazyCommands(Mapping[str, Any]):
    """The commands of a group, each imported by the first access to it."""

    def __init__(self, above: TyperGroup) -> None:
        self._above, self._loaded = above, dict[str, Any]()

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            place, _ = VERBS[name]
            self._loaded[name] = finish_command(_load(name, place), self._above)
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(VERBS)

    def __len__(self) -> int:
        return len(VERBS)


def _load(name: str, place: str) -> Any:
    module, _, attribute = place.partition(".")
    found = getattr(import_module(f"sparing.cli.{module}"), attribute)
    if not isinstance(found, typer.Typer):
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        alone.command(name)(found)
        return typer.main.get_command(alone)
    command = typer.main.get_command(found)
    command.name = name
    return command


class StandIn(TyperCommand):
    """Completes the arguments of a command without importing it."""

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Complete the name of an option: only the command itself knows them."""
        return ctx.parent.command.commands[self.name].shell_complete(ctx, incomplete)


def _stand_in(name: str) -> Any:
    def take(
        words: Annotated[list[str] | None, typer.Argument(autocompletion=COMPLETIONS[name])] = None,
    ) -> None:
        """Take any words; it is never run."""

    alone = typer.Typer(add_completion=False)
    alone.command(name, cls=StandIn, context_settings={"ignore_unknown_options": True})(take)
    return typer.main.get_command(alone)
