"""The package's own model."""

from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.cli.conftest import Sparing

from sparing import device
from sparing.errors import UserError
from sparing.runs.folder import RunFolder, load_model
from sparing.runs.shipped import HOME as SHIPPED
from sparing.runs.shipped import run_or_shipped, ship


def test_without_one_a_run_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="name a RUN"):
        run_or_shipped(None, tmp_path)


def test_what_is_shipped_is_the_best_of_a_run_in_half_the_bytes(run: Path, tmp_path: Path) -> None:
    home = tmp_path / "shipped"
    ship(RunFolder(run), home)
    folder = run_or_shipped(None, home)
    weights = load_file(home / "checkpoints" / "best" / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    hardware = device.pick("cpu", "float32")
    own, original = (load_model(one, hardware, "best") for one in (folder, RunFolder(run)))
    tokens = torch.zeros(1, 4, dtype=torch.int64)
    one, other = (model(tokens, model.initial_state(1)).hidden_BTD for model in (own, original))
    torch.testing.assert_close(one, other, rtol=0.05, atol=0.05)
    assert folder.read("vocab") == RunFolder(run).read("vocab")


def test_generate_and_score_work_without_a_run(
    run: Path, sparing: Sparing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "shipped"
    for verb in (["generate", "--length", "5"], ["score", "--text", "ab"]):
        said = sparing(*verb)
        if (SHIPPED / "config.json").exists():
            assert said.status == 0
        else:
            assert (said.status, said.err.count("\n")) == (2, 1)
    ship(RunFolder(run), home)
    monkeypatch.setattr("sparing.cli.generate.run_or_shipped", partial(run_or_shipped, home=home))
    monkeypatch.setattr("sparing.cli.score.run_or_shipped", partial(run_or_shipped, home=home))
    assert sparing("generate", "--length", "5", "--prompt", "12").out.startswith("12")
    (tmp_path / "lines.txt").write_text("12\n34\n")
    assert len(sparing("score", tmp_path / "lines.txt", "--json").out.splitlines()) == 2
    assert sparing("score", "--text", "12").status == 0


def test_a_misspelt_run_is_told_before_any_text_is_read(sparing: Sparing) -> None:
    said = sparing("score", "no-such-run")
    assert said.status == 2
    assert "no-such-run does not exist" in said.err
