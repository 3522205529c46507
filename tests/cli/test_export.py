"""`sparing export` from the command line: the folder, and what is refused."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.cli.conftest import Sparing
from tests.cli.test_bad_input import refused

from sparing import config
from sparing.export.hf import check
from sparing.models.supernet.config import SupernetConfig
from sparing.runs.bundled import HOME


def test_a_run_is_exported_checked_and_described(
    sparing: Sparing, run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "some" / "exported"
    said = sparing("export", run, "--format", "hf", "--out", out, "--json")
    assert said.status == 0, said.err
    report = said.json()
    assert 0 <= report["largest_difference"] <= 1e-5
    files = [path for path in out.iterdir() if path.is_file()]
    assert report["files"] == len(files) == len(list(out.rglob("*")))
    assert report["size_bytes"] == sum(path.stat().st_size for path in files)
    assert json.loads((out / "config.json").read_text())["settings"]["gate"] == "vector"
    best = json.loads((run / "results.json").read_text())["best_valid"]
    assert f"{best['bits_per_byte']:.4f}" in (out / "README.md").read_text()
    assert [path.name for path in out.parent.iterdir()] == ["exported"]
    refused(sparing("export", run, "--format", "hf", "--out", out), "exists")
    refused(sparing("generate", out), "is a Hugging Face export")


def test_an_export_that_answers_differently_is_not_handed_over(
    sparing: Sparing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "_ask", lambda *_: {"ids": torch.zeros(1)})
    said = sparing("export", "--format", "hf", "--out", tmp_path / "exported")
    refused(said, "differently", "nothing was written")
    assert not list(tmp_path.iterdir())


def test_a_search_is_refused(sparing: Sparing, tmp_path: Path) -> None:
    search = tmp_path / "search"
    search.mkdir()
    stored = json.loads((HOME / "config.json").read_text())
    stored |= {"family": "supernet", "model": config.to_json(SupernetConfig(vocab_size=256))}
    (search / "config.json").write_text(json.dumps(stored))
    said = sparing("export", search, "--format", "hf", "--out", tmp_path / "exported")
    refused(said, "search", "derive")
    assert [path.name for path in tmp_path.iterdir()] == ["search"]


def test_a_damaged_run_is_refused(sparing: Sparing, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(HOME, damaged)
    weights = damaged / "checkpoints" / "best" / "model.safetensors"
    tensors = load_file(weights)
    tensors.popitem()
    save_file(tensors, weights)
    said = sparing("export", damaged, "--format", "hf", "--out", tmp_path / "exported")
    refused(said, "best")
    assert [path.name for path in tmp_path.iterdir()] == ["damaged"]


def test_what_cannot_be_written_is_refused_before_any_work(
    sparing: Sparing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = tmp_path / "used"
    used.write_text("a file")
    refused(sparing("export", "--format", "hf", "--out", used), "exists")
    inside = sparing("export", "--format", "hf", "--out", used / "new")
    refused(inside, f"{used}: a file of this name is in the way")
    refused(sparing("export", "--format", "hfx", "--out", tmp_path / "new"), "hfx", "hf")
    refused(sparing("export", "--format", "hf"), "--out")
    refused(sparing("export", "--format", "hf", "--out", ""), "`out` is empty")
    refused(sparing("export", "nowhere", "--format", "hf", "--out", tmp_path / "new"), "nowhere")
    monkeypatch.setitem(sys.modules, "transformers", None)
    refused(sparing("export", "--format", "hf", "--out", tmp_path / "new"), "sparing[hf]")
    assert [path.name for path in tmp_path.iterdir()] == ["used"]
