"""`sparing verify`: a recipe trained as its figure was made, and compared with it."""

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Said, Sparing, settings

from sparing.runs import reference
from sparing.runs.folder import open_run
from sparing.training import journal

Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def published(run: Path, sparing: Sparing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a reference that a tiny run has become."""
    return publish(run, sparing, tmp_path, monkeypatch)


def publish(run: Path, sparing: Sparing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for split in ("valid", "test"):
        assert sparing("evaluate", run, "--split", split, "--device", "cpu").status == 0
    home = tmp_path / "references"
    home.mkdir()
    monkeypatch.setattr(reference, "HOME", home)
    reference.write_reference(open_run(run))
    return home / "quickstart.json"


def change(published: Path, how: Change) -> None:
    stored = json.loads(published.read_text())
    how(stored)
    published.write_text(json.dumps(stored))


def verify(sparing: Sparing, tmp_path: Path, *more: object) -> Said:
    return sparing("verify", "quickstart", "--out", tmp_path / "again", "--quiet", *more)


def test_the_same_code_has_the_same_curve_and_figures(
    published: Path, sparing: Sparing, tmp_path: Path
) -> None:
    said = verify(sparing, tmp_path, "--json")
    assert said.status == 0, said.err
    record = said.json()
    assert (record["verdict"], record["by"], record["steps"]) == ("within", "steps", 12)
    assert [row["what"] for row in record["rows"]][-3:] == [
        "valid, step 12",
        "valid, whole",
        "test, whole",
    ]
    # Rounded in the reference.
    assert all(abs(row["difference"]) < 1e-5 for row in record["rows"])
    # The finished run can be compared again, without training.
    said = sparing("verify", "quickstart", "--run", tmp_path / "again")
    assert said.status == 0, said.err
    assert said.out.count("within") == len(record["rows"]) + 1


@pytest.mark.parametrize("split", ["valid", "test"])
def test_another_figure_is_outside(
    published: Path, sparing: Sparing, run: Path, split: str
) -> None:
    def worse(stored: dict[str, Any]) -> None:
        stored["figures"][split] -= 1.01 * stored["spread"]["figure"]

    change(published, worse)
    said = sparing("verify", "quickstart", "--run", run)
    assert (said.status, said.out.count("OUTSIDE")) == (1, 1)
    assert "outside the spread" in said.out
    record = sparing("verify", "quickstart", "--run", run, "--json").json()
    assert [row["what"] for row in record["rows"] if not row["within"]] == [f"{split}, whole"]


def test_a_stretch_of_another_curve_is_outside(
    published: Path, sparing: Sparing, run: Path
) -> None:
    def better(stored: dict[str, Any]) -> None:
        stored["curve"]["bits_per_byte"][3] *= 1.03

    change(published, better)
    record = sparing("verify", "quickstart", "--run", run, "--json").json()
    assert record["verdict"] == "outside"
    assert [row["what"] for row in record["rows"] if not row["within"]] == ["train, step 8"]


def test_a_part_of_the_curve_takes_a_part_of_the_steps(
    published: Path, sparing: Sparing, tmp_path: Path
) -> None:
    # A figure that is not reached is not looked at.
    change(published, lambda stored: stored["figures"].update(test=0.1))
    said = verify(sparing, tmp_path, "--until", "0.5", "--json")
    assert said.status == 0, said.err
    record = said.json()
    assert (record["steps"], record["until"]) == (6, 0.5)
    assert [row["what"] for row in record["rows"]] == [
        "train, step 2",
        "train, step 4",
        "train, step 6",
    ]
    said = sparing("verify", "quickstart", "--run", tmp_path / "again")
    assert (said.status, said.out) == (2, "")
    assert "holds 50% of the reference's curve" in said.err


def in_minutes(run: Path) -> None:
    """What the run would be if it had made its twelve steps in a budget of 6.5 seconds."""
    config = json.loads((run / "config.json").read_text())
    config["train"] |= {"steps": None, "minutes": 6.5 / 60}
    (run / "config.json").write_text(json.dumps(config))
    results = json.loads((run / "results.json").read_text())
    results["training"]["elapsed_s"] = 6.5
    (run / "results.json").write_text(json.dumps(results))
    lines = journal.read(run / "metrics.jsonl")
    for entry in lines:
        entry["elapsed_s"] = (1 + entry["step"]) / 2
    (run / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in lines))


def test_a_schedule_by_the_minute_is_that_of_the_reference_on_any_machine(
    run: Path, sparing: Sparing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_minutes(run)
    publish(run, sparing, tmp_path, monkeypatch)
    said = verify(sparing, tmp_path, "--json")
    assert said.status in (0, 1), said.err
    record, rates = said.json(), learning_rates(tmp_path / "again")
    assert (record["by"], record["steps"]) == ("steps", 12)
    assert record["notes"][0].startswith(f"{record['speed']:.2f} times the speed")
    # The recipe warms up for 20 steps. Its decay begins after 0.4 of the time.
    shares = [(1 + step) / 13 for step in (1, 3, 5, 7, 9, 11)]
    wanted = [
        0.02 * (step / 20) * min(1, (1 - share) / 0.6)
        for step, share in zip((2, 4, 6, 8, 10, 12), shares, strict=True)
    ]
    assert rates == pytest.approx(wanted)
    # It was not made by the clock, and is not compared by it.
    again = sparing("verify", "quickstart", "--run", tmp_path / "again", "--json").json()
    assert again["by"] == "steps"


def learning_rates(run: Path) -> list[float]:
    return [e["lr"] for e in journal.read(run / "metrics.jsonl") if e["kind"] == "train"]


def test_a_slower_machine_is_told_that_it_made_fewer_steps(
    run: Path, sparing: Sparing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_minutes(run)
    publish(run, sparing, tmp_path, monkeypatch)
    slower = Path(shutil.copytree(run, tmp_path / "slower"))
    lines = journal.read(run / "metrics.jsonl")
    half = [entry | {"step": entry["step"] // 2} for entry in lines]
    (slower / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in half))
    record = sparing("verify", "quickstart", "--run", slower, "--json").json()
    assert (record["by"], record["speed"]) == ("minutes", 0.5)
    assert record["notes"][0].startswith("6 steps in the time of the reference's 12")
    assert record["rows"][0]["what"] == "train, minutes 0.0 to 0.0"
    assert not [row for row in record["rows"] if row["what"].startswith("valid, step")]


def test_it_trains_by_the_clock_on_request(
    run: Path, sparing: Sparing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_minutes(run)
    publish(run, sparing, tmp_path, monkeypatch)
    # The process that runs the tests is older than the budget.
    monkeypatch.setattr("sparing.cli.verify.process_age_s", float)
    said = verify(sparing, tmp_path, "--by", "minutes", "--until", "0.25")
    assert said.status in (0, 1), said.err
    assert "steps in the time of the reference's 12" in said.out


def test_a_stopped_run_is_named_with_the_command_that_compares_it(
    published: Path, sparing: Sparing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparing.cli.verify.train_like", lambda *given: signal.SIGTERM)
    said = sparing("verify", "quickstart", "--out", tmp_path / "cut")
    assert said.status == 128 + signal.SIGTERM
    assert f"sparing verify quickstart --until FRACTION --run {tmp_path / 'cut'}" in said.err


def test_runs_and_options_that_cannot_be_compared_are_refused(
    published: Path, run: Path, corpus: Path, sparing: Sparing, tmp_path: Path
) -> None:
    other, sparse = tmp_path / "other", tmp_path / "sparse"
    for out, setting in ((other, "optim.lr=0.01"), (sparse, "train.log_every=3")):
        words = ["--out", out, *settings(setting), "--quiet"]
        assert sparing("train", "quickstart", "--data", corpus, *words).status == 0
    for given, answer in (
        (["quickstart", "--run", other], "has other settings than the reference (optim.lr"),
        (["quickstart", "--run", sparse], "than the reference (train.log_every: 2 -> 3)"),
        (["quickstart", "--run", run, "--out", other], "--run ignores --out"),
        (["quickstart", "--until", "0"], "--until is a fraction of the run"),
        (["quickstart", "--run", run, "--until", "0.1"], "begins at step 2 of 12; compare more"),
        (["quickstart", "--by", "minutes"], "has no budget in minutes"),
        # Before anything is trained.
        (["quickstart", "--out", tmp_path / "new", "--until", "0.1"], "compare more with --until"),
        (["enwik8_mlstm"], "recipe with a reference"),
        (["quickstart", "--run", tmp_path / "none"], "does not exist"),
    ):
        said = sparing("verify", *given)
        assert (said.status, said.out, len(said.err.splitlines())) == (2, "", 1)
        assert answer in said.err
    assert not (tmp_path / "new").exists()


def test_validations_of_another_part_of_the_split_are_not_compared(
    published: Path, corpus: Path, sparing: Sparing, tmp_path: Path
) -> None:
    out = tmp_path / "brief"
    words = [
        "--out",
        out,
        *settings("train.evaluate_bytes=40", "train.keep_state=false"),
        "--quiet",
    ]
    assert sparing("train", "quickstart", "--data", corpus, *words).status == 0
    for split in ("valid", "test"):
        assert sparing("evaluate", out, "--split", split, "--device", "cpu").status == 0
    record = sparing("verify", "quickstart", "--run", out, "--json").json()
    assert record["verdict"] == "within"
    assert not [row for row in record["rows"] if row["what"].startswith("valid, step")]
