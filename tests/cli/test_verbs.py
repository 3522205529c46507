"""Commands are imported when they are used, and only then."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from tests.cli.conftest import Sparing

from sparing.cli.main import UNPARSED, app
from sparing.cli.verbs import COMPLETIONS, VERBS

SRC = Path(__file__).parents[2] / "src"
TORCHLESS = """
import sys
from sparing.cli.main import main
unwanted = sys.argv.pop(1)
status = main(sys.argv[1:])
assert sys.modules.keys().isdisjoint(["numpy", "torch", *unwanted.split()])
sys.exit(status)
"""
COMPLETING = """
import sys
from sparing.cli.main import main
try:
    main([])
except SystemExit:
    pass
assert "torch" not in sys.modules
"""


def run_python(*words: str, cwd: Path | None = None, **environment: str) -> str:
    said = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SRC), **environment},
        cwd=cwd,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    return said.stdout


@pytest.mark.parametrize("words", ["--help", "-h", "--version", "info", "info --json", "info -h"])
def test_torch_is_not_imported_where_it_is_not_needed(words: str) -> None:
    # Typer's parser takes half of the time that `info` may take.
    unwanted = "pydantic" if words in ("info", "info --json", "--help") else ""
    assert run_python("-c", TORCHLESS, unwanted, *words.split())


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("sparing in", "info"),
        ("sparing info quick", "quickstart"),
        ("sparing info runs", "runs/mine"),
        ("sparing info --js", "--json"),
        ("sparing train --resume quick", "quickstart"),
        ("sparing generate runs", "runs/mine"),
        ("sparing generate runs/mine --js", "--json"),
        ("sparing evaluate --split te", "test"),
    ],
)
def test_the_shell_completes_commands_recipes_runs_and_options(
    line: str, expected: str, tmp_path: Path
) -> None:
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "config.json").write_text("{}")
    shell = {"_SPARING_COMPLETE": "complete_bash", "COMP_WORDS": line}
    at = str(len(line.split()) - 1)
    said = run_python("-m", "sparing", cwd=tmp_path, COMP_CWORD=at, **shell)
    assert expected in said.splitlines()


@pytest.mark.parametrize("command", COMPLETIONS)
def test_the_tab_key_does_not_wait_for_torch(command: str) -> None:
    shell = {"_SPARING_COMPLETE": "complete_bash", "COMP_WORDS": f"sparing {command} q"}
    run_python("-c", COMPLETING, COMP_CWORD="2", **shell)


def test_every_completion_is_that_of_the_command_itself() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]  # a group
    for name, complete in COMPLETIONS.items():
        (first, *_) = (p for p in commands[name].params if p.param_type_name == "argument")
        offered = [item.value for item in first.shell_complete(None, "quick")]
        assert offered == complete("quick")


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_info_says_the_same_whether_or_not_its_command_line_is_parsed(
    more: list[str], sparing: Sparing
) -> None:
    assert ["info", *more] in UNPARSED
    assert sparing("info", *more).out == sparing("info", *more, "--").out


def test_every_verb_can_be_loaded_under_its_name() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]  # a group
    assert [command.name for command in commands.values()] == list(VERBS)


def test_short_help_is_the_same_as_help(sparing: Sparing) -> None:
    assert sparing("score", "-h").out == sparing("score", "--help").out
