"""Stories of `sparing compare`."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cli.conftest import Sparing, settings

from sparing.files import lock_folder
from sparing.runs.folder import RunFolder
from sparing.training.journal import read

SOURCE = Path(__file__).parents[2] / "src"
VARIANTS = ("no memory: model.attention_at=()", "model.attention_at=(0,1), model.dropout_input=0.1")


def words(corpus: Path, out: Path, *variants: str, steps: int = 4) -> list[str]:
    given = [word for one in variants for word in ("--variant", one)]
    start = ["compare", "quickstart", "--data", str(corpus), "--out", str(out), "--quiet"]
    return [*start, *settings(), "--steps", str(steps), *given]


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if matplotlib were missing: a picture takes seconds, too."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def stamps(out: Path) -> dict[str, int]:
    return {p.parent.name: p.stat().st_mtime_ns for p in out.glob("*/metrics.jsonl")}


@pytest.mark.usefixtures("in_process", "undrawn")
def test_two_variants_with_two_seeds(
    sparing: Sparing, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    monkeypatch.setenv("SPARING_COMMIT", "this")
    said = sparing(*words(corpus, out, *VARIANTS), "--seeds", 2, "--json")
    assert said.status == 0, said.err
    record = said.json()
    assert record == json.loads((out / "compare.json").read_text())
    rows = {row["name"]: row for row in record["rows"]}
    names = ["recipe", "no memory", "model.attention_at=(0,1); model.dropout_input=0.1"]
    assert set(rows) == set(names)
    values = [row["valid"] for row in record["rows"]]
    assert values == sorted(values)
    folders = {f"{name}-seed{n}" for n in (1, 2) for name in ("recipe", "no-memory")}
    assert folders < set(stamps(out))
    assert len(stamps(out)) == 6
    seeds = [RunFolder(out / f"no-memory-seed{n}").config().train.seed for n in (1, 2)]
    assert seeds[1] == seeds[0] + 1 == record["seed"] + 1
    row = rows["no memory"]
    entries = [read(out / f"no-memory-seed{n}" / "metrics.jsonl") for n in (1, 2)]
    valid = [[e for e in each if e["kind"] == "valid"][-1]["bits_per_byte"] for each in entries]
    assert row["valid_by_seed"] == valid
    assert row["valid"] == pytest.approx(sum(valid) / 2)
    assert row["valid_half_range"] == pytest.approx(abs(valid[0] - valid[1]) / 2)
    assert row["difference"] == pytest.approx(row["valid"] - rows["recipe"]["valid"])
    assert row["parameters"] < rows["recipe"]["parameters"]
    assert (row["steps"], row["bytes_read"]) == (4, 4 * 4 * 16)
    assert min(row["bytes_per_s"], row["peak_bytes"], row["elapsed_s"]) > 0
    assert not (out / "curves.png").exists()
    assert "test" not in (out / "recipe-seed1" / "results.json").read_text()
    assert "no memory: model.attention_at=()" in (out / "compare.md").read_text()
    before = stamps(out)
    monkeypatch.setenv("SPARING_COMMIT", "another")
    said = sparing(*words(corpus, out, *VARIANTS), "--seeds", 2)
    assert said.status == 0, said.err
    assert stamps(out) == before
    assert said.out.startswith("variant")
    # Nothing was trained: the table comes from where it came before.
    assert json.loads((out / "compare.json").read_text()) == record
    assert record["commits"] == ["this"]
    assert "; commit this." in said.out
    document = sparing(*words(corpus, out, *VARIANTS), "--seeds", 2, "--markdown").out
    assert document == (out / "compare.md").read_text()
    results = sparing("results", out, "--json").json()["rows"]
    assert [len(each["seeds"]) for each in results] == [2, 2, 2]
    same = ("parameters", "bytes_read", "bytes_per_s", "peak_bytes", "elapsed_s")
    mine = next(each for each in results if each["run"] == "no-memory")
    assert {name: mine[name] for name in same} == {name: row[name] for name in same}


@pytest.mark.usefixtures("in_process", "undrawn")
def test_variants_are_added_and_replaced_but_never_mixed_up(
    sparing: Sparing, corpus: Path, tmp_path: Path
) -> None:
    out, small = tmp_path / "out", "small: model.memory=8"
    assert sparing(*words(corpus, out, small)).status == 0
    before = stamps(out)
    assert sparing(*words(corpus, out, small, VARIANTS[0])).status == 0
    assert {name: stamps(out)[name] for name in before} == before
    shutil.rmtree(out / "small-seed1")
    said = sparing(*words(corpus, out, small))
    assert said.status == 0
    assert said.out.endswith("not in the table: no-memory-seed1.\n")
    assert stamps(out)["small-seed1"] > before["small-seed1"]
    left = contents(out)
    for another in (
        words(corpus, out, "small: model.memory=9"),
        words(corpus, out, small, steps=5),
        words(corpus, out / "recipe-seed1", small),
    ):
        said = sparing(*another)
        assert said.status == 2
        assert said.err.count("\n") == 1
        assert "folder" in said.err
    assert contents(out) == left


@pytest.mark.usefixtures("in_process", "undrawn")
def test_a_folder_in_use_by_another_training_stops_the_comparison(
    sparing: Sparing, corpus: Path, tmp_path: Path
) -> None:
    out, small = tmp_path / "out", "small: model.memory=8"
    with lock_folder(out / "small-seed1"):
        said = sparing(*words(corpus, out, small, VARIANTS[0]))
    assert said.status == 2
    assert said.err.splitlines()[-1] == (
        f"sparing: {out / 'small-seed1'} is in use by another process"
    )
    assert json.loads((out / "compare.json").read_text())["trials"] == {"recipe-seed1": "finished"}
    assert list(stamps(out)) == ["recipe-seed1"]


@pytest.mark.usefixtures("in_process", "undrawn")
def test_a_damaged_finished_run_is_reported_in_one_line(
    sparing: Sparing, corpus: Path, tmp_path: Path
) -> None:
    out, small = tmp_path / "out", "small: model.memory=8"
    assert sparing(*words(corpus, out, small)).status == 0
    lost = out / "small-seed1" / "metrics.jsonl"
    (lost.parent / "results.json").write_text('{"training": null}')
    assert sparing(*words(corpus, out, small)).status == 0
    lost.write_text("")
    said = sparing(*words(corpus, out, small))
    assert (said.status, said.err.count("\n")) == (2, 1)
    assert f"{lost.parent} has finished, but has no valid entry" in said.err


@pytest.mark.usefixtures("in_process")
def test_curves_are_drawn_if_matplotlib_is_installed(
    sparing: Sparing, corpus: Path, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    assert sparing(*words(corpus, tmp_path / "out", VARIANTS[0])).status == 0
    assert (tmp_path / "out" / "curves.png").stat().st_size > 1000


@pytest.mark.usefixtures("in_process")
def test_the_table_is_printed_even_if_the_picture_fails(
    sparing: Sparing, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")

    def fail(*words: object) -> None:
        raise OSError("out of ink")

    monkeypatch.setattr("sparing.cli.compare.save_figure", fail)
    said = sparing(*words(corpus, tmp_path / "out", VARIANTS[0]))
    assert said.err.endswith("out of ink\n")
    assert said.out.startswith("variant")


@pytest.mark.usefixtures("undrawn")
def test_an_interrupted_trial_is_resumed_and_a_failed_one_does_not_stop_the_others(
    sparing: Sparing, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    out, journal = tmp_path / "out", tmp_path / "out" / "recipe-seed1" / "metrics.jsonl"
    call = words(corpus, out, "hot: optim.lr=1e30", steps=150)
    with subprocess.Popen([sys.executable, "-m", "sparing", *call], env=os.environ) as parent:
        while not read(journal):
            assert parent.poll() is None
            time.sleep(0.01)
        parent.send_signal(signal.SIGTERM)
        assert parent.wait(timeout=60) == 128 + signal.SIGTERM
    step = RunFolder(out / "recipe-seed1").step("last")
    assert 0 < step < 150
    assert [row["status"] for row in json.loads((out / "compare.json").read_text())["rows"]] == [
        "unfinished",
        "unfinished",
    ]
    said = sparing(*call, "--json")
    assert said.status == 1
    assert said.err.count("\n") == 1
    assert said.err.startswith("hot, seed 1, failed: the loss is not finite")
    recipe, hot = said.json()["rows"]
    assert (recipe["name"], recipe["status"], recipe["steps"]) == ("recipe", "finished", 150)
    assert (hot["name"], hot["status"], hot["valid"]) == ("hot", "failed", None)
    resumed = RunFolder(out / "recipe-seed1").read("provenance")["resumed"]
    assert len(resumed) == 1


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        (["--variant", "model.dim=16"], "has the settings of 'recipe'"),
        (
            ["--variant", "model.memory=7", "--variant", "x: model.memory=7"],
            "settings of 'model.memory=7'",
        ),
        (["--variant", "train.minutes=1"], "train.minutes"),
        (["--variant", "model.memory=7", "--minutes", "1"], "not both"),
        (["--variant", "model.memory=7", "--seeds", "0"], "at least one seed"),
        (["--variant", "model.memory=7", "--device", "toaster"], "toaster"),
        (["--variant", "wide: train.segment=100000"], "wide: the text has"),
        (["--variant", "model.memory=7", "--variant", "model.dim=17"], "boom_dim"),
        (["--variant", "model.memory=7", "--set", "train.stpes=3"], "train.steps"),
        (["--variant", "data.vocab=words"], "data.vocab"),
        (["--variant", "model.memory=7", "--out", ""], "`out` is empty"),
        ([], "--variant"),
    ],
)
def test_mistakes_are_refused_before_any_training(
    more: list[str], complaint: str, sparing: Sparing, corpus: Path, tmp_path: Path
) -> None:
    said = sparing(*words(corpus, tmp_path / "out"), *more)
    assert said.status == 2
    assert complaint in said.err
    assert said.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_file_as_out_is_refused(sparing: Sparing, corpus: Path) -> None:
    said = sparing(*words(corpus, corpus, VARIANTS[0]))
    assert (said.status, said.err.count("\n")) == (2, 1)
    assert "is a file" in said.err
