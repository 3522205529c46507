"""Help texts and usage errors."""

import re
from collections.abc import Iterator
from functools import reduce
from typing import Any

import pytest
import typer
from tests.cli.conftest import Sparing

from sparing.cli.main import app
from sparing.errors import UserError

PYTHON = re.compile(r"<(list\[\w+\]|int|float|str|path|Path|int,int)>|INTEGER")


def paths(command: Any, *above: str) -> Iterator[tuple[str, ...]]:
    yield above
    for name, below in getattr(command, "commands", {}).items():
        yield from paths(below, *above, name)


def test_help_texts_do_not_name_python_types(sparing: Sparing) -> None:
    commands = list(paths(typer.main.get_command(app)))
    assert len(commands) > 12
    for command in commands:
        said = sparing(*command, "--help")
        assert said.status == 0
        assert not PYTHON.search(said.out), said.out
    generate = sparing("generate", "--help").out
    assert "--length N" in generate
    assert "--prompt TEXT" in generate
    assert re.search(r"^  RUN +Folder .*\[required\]$", sparing("derive", "--help").out, re.M)
    assert "--timeout X" in sparing("train", "--help").out


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("import", "PROGRAM FILE.pt"),
        ("derive", "RUN"),
        ("board", "RUN..."),
        ("plot", "[RUN]..."),
        ("train", "[RECIPE]"),
    ],
)
def test_a_usage_line_names_the_arguments_and_brackets_the_optional_ones(
    command: str, arguments: str, sparing: Sparing
) -> None:
    said = sparing(command, "--help").out.splitlines()[0]
    assert said == f"Usage: sparing {command} [OPTIONS] {arguments}"


def test_help_texts_fit_80_columns_and_explain_what_a_run_is(
    sparing: Sparing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    explained = 0
    for command in paths(typer.main.get_command(app)):
        said = sparing(*command, "--help").out
        assert all(len(line) <= 80 for line in said.splitlines()), said
        # A line that does not fit would be cut off like this.
        assert not re.search(r"[a-z]\.\.\.$", said, re.MULTILINE), said
        if found := re.search(r"^  RUN(\.\.\.)? .*(?:\n {8}.*)*", said, re.MULTILINE):
            assert re.search(r"Folders? written by `sparing (train|search)`", found[0]), said
            explained += 1
    assert explained >= 6


def test_every_argument_and_option_of_every_command_has_help() -> None:
    command = typer.main.get_command(app)
    silent = [
        f"{' '.join(path)} {parameter.name}"
        for path in paths(command)
        for parameter in reduce(lambda above, name: above.commands[name], path, command).params
        if not parameter.help
    ]
    assert silent == []


@pytest.mark.parametrize("call", [["--debug", "info"], ["info", "--debug"], ["data", "--debug"]])
def test_debug_shows_the_traceback_before_and_after_the_command(
    call: list[str], sparing: Sparing
) -> None:
    more = ["get"] if "data" in call else []
    with pytest.raises(UserError, match="unknown"):
        sparing(*call, *more, "no-such-name")


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["train", "quickstart", "--minutes", "abc"], "--minutes takes a number"),
        (["generate", "run", "--length", "1.5"], "--length takes a whole number"),
        (
            ["evaluate", "run", "--split", "tset"],
            "unknown --split 'tset'; did you mean 'test'?",
        ),
        (["train", "--quite"], "unknown option '--quite'; did you mean '--quiet'?"),
        (["train", "--timeout", "0"], "--timeout must be at least 1"),
        (["train", "--xyzzy"], "unknown option '--xyzzy'; see --help"),
        (["derive"], "RUN is missing; see --help"),
        (["bench", "trian"], "unknown command 'trian'; did you mean 'train'?"),
        (["train", "quickstart", "--set"], "--set needs a value"),
        (["bench", "span", "--limits", "3"], "--limits needs 2 values"),
        (["train", "quickstart", "--resume=1"], "--resume takes no value"),
        (["train", "quickstart", "b", "c"], "too many arguments: b c"),
    ],
)
def test_usage_errors_are_reworded(command: list[str], sentence: str, sparing: Sparing) -> None:
    said = sparing(*command)
    assert (said.status, said.err) == (2, f"sparing: {sentence}\n")
