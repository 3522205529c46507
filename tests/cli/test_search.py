"""The story of PAR from the command line: search, derive, retrain, board, pictures."""

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Said, Sparing

from sparing.runs.folder import RunFolder, is_run
from sparing.search import cost
from sparing.training.journal import read

SMALL = [
    "model.dim=8", "model.relative.head_dim=4", "model.relative.memory=8",
    "model.windowed.head_dim=4", "model.single_head.memory=8", "model.feedforward.dim=8",
    "train.batch=4", "train.segment=8", "train.log_every=2", "train.steps=8",
    "evaluate.batch=8", "evaluate.segment=32", "train.evaluate_bytes=none",
]  # fmt: skip
SEARCH = [*SMALL, "model.boom.dim=8", "model.search.candidates=xfi"]


def words(*settings: str) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "TURNS", 1)
    monkeypatch.setattr(cost, "LAPS", 1)


@pytest.fixture
def searched(sparing: Sparing, corpus: Path, tmp_path: Path) -> Path:
    said = start(sparing, corpus, tmp_path / "search")
    assert said.status == 0, said.err
    return tmp_path / "search"


def start(sparing: Sparing, corpus: Path, out: Path, *more: str) -> Said:
    return sparing(
        "search", "toy_par_search", "--data", corpus, "--out", out, "--quiet", "--json",
        *words(*SEARCH), *(more or ("--budget", "0.9", "--currency", "parameters")),
    )  # fmt: skip


def test_search_derive_retrain_evaluate(
    sparing: Sparing, searched: Path, corpus: Path, tmp_path: Path
) -> None:
    found = json.loads((searched / "results.json").read_text())["search"]
    assert found["cost"] <= 0.9
    log = (searched / "search.log").read_text()
    assert "Transformer-XL attention" in log
    assert "tau" in log
    assert f"found {found['pattern']}" in " ".join(sparing("info", searched).out.split())
    said = sparing("derive", searched, "--out", tmp_path / "found.json", "--json")
    assert said.json()["pattern"] == found["pattern"]
    assert set(said.json()["blocks"]) == set(found["blocks"]) == set(found["pattern"])
    info = sparing("info", tmp_path / "found.json", "--json").json()
    assert info["family"] == "stack"
    retrained = tmp_path / "retrained"
    said = sparing("train", tmp_path / "found.json", "--out", retrained, "--quiet")
    assert said.status == 0, said.err
    config = json.loads((retrained / "config.json").read_text())
    assert (config["family"], config["model"]["pattern"]) == ("stack", found["pattern"])
    assert sparing("evaluate", retrained, "--split", "test", "--json").json()["bits_per_byte"] > 0
    # A super-net itself can be measured and talked to, and has no noise then.
    reports = [sparing("evaluate", searched, "--json").json() for _ in range(2)]
    assert reports[0]["loss_nats"] == reports[1]["loss_nats"]
    assert sparing("generate", searched, "--prompt", "the", "--length", 3).status == 0


def test_times_are_measured_for_a_budget_in_time(
    sparing: Sparing, corpus: Path, tmp_path: Path
) -> None:
    said = start(sparing, corpus, tmp_path / "timed", "--budget", "0.99", "--seed", "5")
    assert said.status == 0, said.err
    table = json.loads((tmp_path / "timed" / "costs.json").read_text())
    assert set(table["regimes"]) == {"train", "prefill", "decode"}
    config = json.loads((tmp_path / "timed" / "config.json").read_text())
    assert config["train"]["seed"] == 5
    assert len(config["model"]["search"]["costs"]) == 3


def test_a_search_is_resumed_with_its_own_costs(
    sparing: Sparing, searched: Path, tmp_path: Path
) -> None:
    before = json.loads((searched / "config.json").read_text())["model"]["search"]["costs"]
    said = sparing(
        "search", "--resume", "--out", searched, "--quiet", "--json", *words("train.steps=12")
    )
    assert said.status == 0, said.err
    after = json.loads((searched / "config.json").read_text())["model"]["search"]["costs"]
    assert after == before
    assert [e["step"] for e in read(searched / "metrics.jsonl") if e["kind"] == "train"][-1] == 12
    said = sparing("search", "--resume", "--out", searched, *words("train.micro_batches=2"))
    assert said.status == 2
    assert "train.micro_batches" in said.err
    said = sparing("search", "--resume", "--out", searched, "--budget", "0.5")
    assert said.status == 2
    assert "own budget" in said.err


def test_micro_batches_of_one_lane_are_refused(
    sparing: Sparing, corpus: Path, tmp_path: Path
) -> None:
    said = sparing(
        "train", "toy_par_search", "--data", corpus, "--out", tmp_path / "run", "--quiet",
        *words(*SEARCH, "train.micro_batches=4"),
    )  # fmt: skip
    assert said.status == 2
    assert "train.micro_batches" in said.err
    assert not (tmp_path / "run").exists()


def test_pictures(sparing: Sparing, searched: Path) -> None:
    pytest.importorskip("matplotlib")
    files = sparing("plot", searched, "--what", "pi", "--json").json()["files"]
    assert [Path(file).name for file in files] == ["pi.png", "pi-cooling.png", "pi.gif"]
    assert (searched / "plots" / "pi.gif").read_bytes()[:6] == b"GIF89a"


@pytest.mark.usefixtures("in_process")
def test_the_board_trains_every_network_once_and_continues(
    sparing: Sparing, searched: Path, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "board"
    call = ["board", searched, "--out", out, "--seeds", 2, "--random", 1, "--quiet"]
    said = sparing(*call, *words("train.steps=4"))
    assert said.status == 0, said.err
    record = json.loads((out / "board.json").read_text())
    assert {row["status"] for row in record["rows"]} == {"finished"}
    assert set(record["trials"].values()) == {"finished"}
    kinds = {row["kind"] for row in record["rows"]}
    assert {"searched", "baseline"} <= kinds
    assert said.out.startswith("network ")
    assert "| searched-1 |" in (out / "board.md").read_text()
    assert (out / "pareto.png").stat().st_size > 1000
    runs = sorted(path.name for path in out.iterdir() if is_run(path))
    assert runs == sorted(f"{row['name']}-seed{n}" for row in record["rows"] for n in (1, 2))
    row, *_ = record["rows"]
    found = [RunFolder(out / f"{row['name']}-seed{n}").results() for n in (1, 2)]
    assert row["valid_by_seed"] == [each["best_valid"]["bits_per_byte"] for each in found]
    assert row["test_by_seed"] == [each["test"]["bits_per_byte"] for each in found]
    assert [row["valid"] for row in record["rows"]] == sorted(
        row["valid"] for row in record["rows"]
    )
    stamps = [(out / run / "metrics.jsonl").stat().st_mtime_ns for run in runs]
    again = sparing(*call, *words("train.steps=4"), "--markdown")
    assert again.status == 0, again.err
    assert again.out.startswith("| network | pattern |")
    assert [(out / run / "metrics.jsonl").stat().st_mtime_ns for run in runs] == stamps


def test_the_wide_set_of_candidates_works_end_to_end(
    sparing: Sparing, corpus: Path, tmp_path: Path
) -> None:
    wide = [setting for setting in SEARCH if "candidates" not in setting]
    out = tmp_path / "wide"
    said = sparing(
        "search", "toy_par_search", "--data", corpus, "--out", out, "--quiet", "--json",
        *words(*wide, "model.search.sampling=single-path", "model.search.resample_every=3"),
    )  # fmt: skip
    assert said.status == 0, said.err
    assert set(said.json()["pattern"]) <= set("lsaxgbf")
    entry = next(e for e in read(out / "metrics.jsonl") if e["kind"] == "train")
    assert sum(name.startswith("pi.0.") for name in entry) == 8


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (["search", "quickstart", "--budget", "0.5"], "is not a search"),
        (["search", "toy_par_search", "--budget", "nan"], "share of the baseline's cost"),
        (["search", "toy_par_search", "--budget", "-1"], "share of the baseline's cost"),
        (["search", "quickstart"], "is not a search"),
        (["search"], "name a recipe"),
        (["derive", "nowhere"], "does not exist"),
        (["train", "nowhere.json"], "is missing"),
        (["board", "nowhere", "--out", "somewhere"], "does not exist"),
        (["search", "toy_par_search", "--currency", "gold"], "currency"),
        (["search", "toy_par_search", "--currency", "flops"], "--currency is for --budget"),
        (["search", "toy_par_search", "--regime", "decode"], "--regime is for --budget"),
    ],
)
def test_mistakes_are_reported_in_one_line(
    sparing: Sparing, call: list[str], complaint: str
) -> None:
    said = sparing(*call)
    assert said.status == 2
    assert complaint in said.err
    assert said.err.count("\n") == 1


def test_a_recipe_file_with_a_mistake_is_named(sparing: Sparing, tmp_path: Path) -> None:
    path = tmp_path / "wrong.json"
    path.write_text('{"family": "stak"}')
    said = sparing("train", path)
    assert said.status == 2
    assert "wrong.json" in said.err
    assert "stack" in said.err
