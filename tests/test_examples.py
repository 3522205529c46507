"""The notebooks are clean and run from the first cell to the last."""

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from sparing.cli.main import app

ROOT = Path(__file__).parents[1]
OF_PYTHON = ROOT / "examples" / "python_api.ipynb"
"""The notebook that shows its outputs."""
NOTEBOOKS = sorted(path for path in (ROOT / "examples").glob("*.ipynb") if path != OF_PYTHON)
VERBS = {"par_search": {"search", "derive"}}
"""The commands each notebook uses."""

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])


def cells(path: Path, kind: str) -> list[dict[str, Any]]:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    return [cell for cell in notebook["cells"] if cell["cell_type"] == kind]


def program(path: Path) -> str:
    return "\n\n".join("".join(cell["source"]) for cell in cells(path, "code"))


@every_notebook
def test_a_notebook_is_a_program_without_leftovers(path: Path) -> None:
    compile(program(path), str(path), "exec")
    assert all(not cell["outputs"] and not cell["execution_count"] for cell in cells(path, "code"))
    assert str(Path(__file__).parents[1]) not in path.read_text(encoding="utf-8")
    assert len(cells(path, "markdown")) > 3


# Every command in it has a story of its own in the default suite.
@pytest.mark.soak
@every_notebook
def test_a_notebook_runs_at_toy_size(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert VERBS[path.stem] <= set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]  # a group
    (tmp_path / "cells.py").write_text(program(path), encoding="utf-8")
    environment = {
        **os.environ,
        "SPARING_NOTEBOOK": "toy",
        "SPARING_HOME": str(tmp_path / "home"),
        "PYTHONPATH": str(ROOT / "src"),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "cells.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if path.stem == "par_search":
        assert {"pi.png", "pi.gif"} <= {file.name for file in (tmp_path / "runs").rglob("pi.*")}
        assert (tmp_path / "runs" / "curves.png").exists()
        figures = json.loads((tmp_path / "runs" / "derived" / "results.json").read_text())
        assert 0 < figures["test"]["bits_per_byte"] < 9


def test_the_notebook_of_the_python_interface_runs_and_shows_its_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPARING_HOME", str(tmp_path / "home"))
    names: dict[str, object] = {}
    for cell in cells(OF_PYTHON, "code"):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("".join(cell["source"]), OF_PYTHON.name, "exec"), names)
        shown = "".join(line for output in cell["outputs"] for line in output["text"])
        # The texts and figures themselves may differ a little from machine to machine.
        assert bool(shown) == bool(printed.getvalue())
        assert shown[:8] == printed.getvalue()[:8]
    assert cells(OF_PYTHON, "code")
    text = OF_PYTHON.read_text(encoding="utf-8")
    assert not any(place in text for place in (str(ROOT), "/tmp", "/home", "/work"))
