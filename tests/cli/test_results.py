"""`sparing results` on runs that `sparing train` and `sparing evaluate` made."""

import json
import shutil
from pathlib import Path

import pytest
from tests.cli.conftest import Sparing, settings


def test_a_trained_and_measured_run_and_its_seeds(
    run: Path, sparing: Sparing, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sparing("evaluate", run, "--split", "test", "--device", "cpu").status == 0
    folder = run.parent / "all"
    shutil.copytree(run, folder / "quick" / "seed1")
    again = Path(shutil.copytree(run, folder / "quick" / "seed2"))
    said = sparing("results", folder)
    assert said.status == 0
    assert said.err.startswith(f"sparing: {again} is left out: it has the settings and the seed")
    assert "±" not in said.out
    measured = make_another_seed(again)
    said = sparing("results", folder)
    assert (said.status, said.err) == (0, "")
    heads, row = said.out.splitlines()
    assert heads.split()[:2] == ["run", "parameters"]
    assert row.startswith("quick (quickstart, on text.txt)")
    assert "± 0.2500  bytes, 4 carried streams, segment 32" in row
    (record,) = sparing("results", folder, "--json").json()["rows"]
    assert len(record["seeds"]) == 2
    assert record["bytes_read"] == 12 * 4 * 16
    assert record["test"]["whole"]
    assert record["test"]["step"] == 12
    assert record["test"]["by_seed"] == [measured, measured + 0.5]
    assert sparing("results", folder, "--markdown").out.startswith("| run |")
    monkeypatch.setenv("COLUMNS", "60")
    assert max(map(len, sparing("results", folder).out.splitlines())) <= 60


def make_another_seed(run: Path) -> float:
    """What this run would have left with another seed; the test figure before that."""
    config = json.loads((run / "config.json").read_text())
    config["train"]["seed"] += 1
    (run / "config.json").write_text(json.dumps(config))
    results = json.loads((run / "results.json").read_text())
    before = float(results["test"]["bits_per_byte"])
    results["test"]["bits_per_byte"] = before + 0.5
    (run / "results.json").write_text(json.dumps(results))
    return before


def test_a_damaged_run_is_reported_and_left_out_of_the_table(run: Path, sparing: Sparing) -> None:
    folder = run.parent / "all"
    shutil.copytree(run, folder / "good")
    shutil.copytree(run, folder / "bad")
    (folder / "bad" / "config.json").write_text("{")
    said = sparing("results", folder)
    assert said.status == 0
    assert len(said.out.splitlines()) == 2
    (line,) = said.err.splitlines()
    assert line.startswith(f"sparing: {folder / 'bad'} is left out: ")
    record = sparing("results", folder, "--json").json()
    assert [row["run"] for row in record["rows"]] == ["good"]
    assert [str(folder / "bad") in problem for problem in record["left_out"]] == [True]
    (folder / "good" / "config.json").unlink()
    said = sparing("results", folder)
    assert (said.status, said.out) == (2, "")
    assert "no config.json" in said.err
    assert said.err.splitlines()[-1] == f"sparing: none of the runs below {folder} can be read"


def test_a_folder_without_runs_is_refused(sparing: Sparing, tmp_path: Path) -> None:
    for folder, words in ((tmp_path, "there is no run below"), (tmp_path / "x", "not a folder")):
        said = sparing("results", folder)
        assert (said.status, len(said.err.splitlines())) == (2, 1)
        assert words in said.err
    assert "leave one of them out" in sparing("results", tmp_path, "--json", "--markdown").err


@pytest.mark.parametrize(("size", "part"), [(100, True), (1_000_000, False)])
def test_a_whole_valid_split_is_not_called_its_first_bytes(
    size: int, part: bool, sparing: Sparing, corpus: Path, tmp_path: Path
) -> None:
    words = ["--out", tmp_path / "runs" / "one", "--quiet"]
    more = settings(f"train.evaluate_bytes={size}")
    assert sparing("train", "quickstart", "--data", corpus, *words, *more).status == 0
    assert ("(first " in sparing("results", tmp_path / "runs").out) == part
