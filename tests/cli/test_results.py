"""`sparing results` on runs that `sparing train` and `sparing evaluate` made."""

import shutil
from pathlib import Path

from tests.cli.conftest import Sparing


def test_a_trained_and_measured_run_and_its_seeds(run: Path, sparing: Sparing) -> None:
    assert sparing("evaluate", run, "--split", "test", "--device", "cpu").status == 0
    folder = run.parent / "all"
    for seed in (1, 2):
        shutil.copytree(run, folder / "quick" / f"seed{seed}")
    said = sparing("results", folder)
    assert (said.status, said.err) == (0, "")
    heads, row = said.out.splitlines()
    assert heads.split()[:2] == ["run", "parameters"]
    assert row.startswith("quick (quickstart)")
    assert "± 0.0000  bytes, 4 carried streams, segment 32" in row
    (told,) = sparing("results", folder, "--json").json()["rows"]
    assert len(told["seeds"]) == 2
    assert told["bytes_read"] == 12 * 4 * 16
    assert told["test"]["whole"]
    measured = sparing("info", run, "--json").json()["results"]["test"]
    assert told["test"]["by_seed"] == [measured["bits_per_byte"]] * 2
    assert sparing("results", folder, "--markdown").out.startswith("| run |")


def test_a_damaged_run_is_told_and_does_not_stop_the_table(run: Path, sparing: Sparing) -> None:
    folder = run.parent / "all"
    shutil.copytree(run, folder / "good")
    shutil.copytree(run, folder / "bad")
    (folder / "bad" / "config.json").write_text("{")
    said = sparing("results", folder)
    assert said.status == 0
    assert len(said.out.splitlines()) == 2
    (line,) = said.err.splitlines()
    assert line.startswith(f"sparing: {folder / 'bad'} is left out: ")
    told = sparing("results", folder, "--json").json()
    assert [row["run"] for row in told["rows"]] == ["good"]
    assert [str(folder / "bad") in problem for problem in told["left_out"]] == [True]
    (folder / "good" / "config.json").unlink()
    said = sparing("results", folder)
    assert (said.status, said.out) == (2, "")
    assert "no config.json" in said.err
    assert said.err.splitlines()[-1] == f"sparing: no run below {folder} can be read"


def test_a_folder_without_runs_is_refused(sparing: Sparing, tmp_path: Path) -> None:
    for folder, words in ((tmp_path, "there is no run below"), (tmp_path / "x", "not a folder")):
        said = sparing("results", folder)
        assert (said.status, len(said.err.splitlines())) == (2, 1)
        assert words in said.err
    assert "leave one side out" in sparing("results", tmp_path, "--json", "--markdown").err
