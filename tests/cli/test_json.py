"""With --json, a command prints one JSON document and nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.cli.conftest import Sparing
from tests.cli.test_messages import paths
from tests.search.small import searched_run

from sparing.cli.main import app

ELSEWHERE = {
    "board",
    "compare",
    "compress",
    "decompress",
    "export",
    "search",
    "import",
    "verify",
    "data get",
    "bench evaluate",
    "bench span",
    "bench cost",
    "bench distributed",
    "bench profile",
}
"""Commands whose own tests read their JSON: they take longer."""
BENCH = ["--set", "model.dim=8", "--set", "model.boom_dim=16", "--device", "cpu"]


@pytest.fixture
def lines(run: Path, corpus: Path, tmp_path: Path) -> dict[str, list[list[Any]]]:
    """Command lines of every other command that takes --json."""
    searched_run(tmp_path / "search", "xfxf", f"data.corpus={corpus}")
    return {
        "recipes": [[]],
        "info": [[], [run], ["quickstart"], ["quickstart", "--config"]],
        "evaluate": [[run], [run, "--context", 16], [run, "--memory", "0,8"], [run, "--dynamic"]],
        "generate": [[run, "--length", 3], [run, "--prompt", "a", "--prompt", "b", "--length", 3]],
        "score": [[run, "--text", "a", "--text", "b"], [run, corpus, "--whole"]],
        "derive": [[tmp_path / "search"]],
        "results": [[tmp_path]],
        "plot": [[run], [run, "--what", "focus", "--length", 8, "--svg"]],
        "data list": [[]],
        "data prepare": [[corpus]],
        "data cutoffs": [[corpus]],
        "bench train": [[*BENCH, "--steps", 1]],
        "bench generate": [[run, "--length", 2, "--position", 2100]],
        "bench cutoffs": [["--words", 500, "--turns", 1]],
    }


def test_every_command_prints_one_document(
    lines: dict[str, list[list[Any]]], sparing: Sparing
) -> None:
    for command, calls in lines.items():
        for words in calls:
            said = sparing(*command.split(), *words, "--json")
            assert said.status == 0, said.err
            assert isinstance(json.loads(said.out), dict), said.out
    root: Any = typer.main.get_command(app)
    for path in paths(root):
        command = root
        for name in path:
            command = command.commands[name]
        if any("--json" in option.opts for option in command.params):
            assert " ".join(path) in {*lines, *ELSEWHERE}
