"""`sparing bench` from the command line."""

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Sparing

TINY = [
    word
    for setting in ("dim=8", "boom_dim=16", "depth=3", "memory=32")
    for word in ("--set", f"model.{setting}")
]
CPU = ["--device", "cpu"]
FEW = [*CPU, "--set", "train.batch=2", "--set", "train.segment=8", "--steps", "2"]
EARLY = [*CPU, "--length", "2", "--position", "3000"]


def test_train_prints_speed_memory_hardware_and_commit(sparing: Sparing) -> None:
    report = sparing("bench", "train", *TINY, *FEW, "--json").json()
    wanted = {"bytes_per_s", "step_s", "bare_s", "ratio", "peak_bytes", "commit", "device"}
    assert wanted <= report.keys()
    assert report["recipe"] == "enwik8_sha_rnn"
    assert report["size"] == "small"
    assert report["model"]["dim"] == 8
    assert (report["batch"], report["segment"], report["optimizer"]) == (2, 8, "lamb")
    said = sparing("bench", "train", "quickstart", *TINY, *FEW, "--threads", "1")
    assert said.status == 0
    lines = dict(line.split(maxsplit=1) for line in said.out.splitlines())
    assert lines["recipe"] == "quickstart"
    assert lines["threads"] == "1"
    assert float(lines["ratio"]) > 0


def test_generate_compares_early_with_late(sparing: Sparing) -> None:
    report = sparing("bench", "generate", *TINY, *EARLY, "--json").json()
    assert [place["position"] for place in report["positions"]] == [1024, 3000]
    assert len({place["state_bytes"] for place in report["positions"]}) == 1
    assert {"prefill_bytes_per_s", "peak_bytes", "commit", "device"} <= report.keys()
    said = sparing("bench", "generate", *TINY, *EARLY)
    assert "\nat 3,000 " in said.out


def test_generate_takes_a_trained_run(sparing: Sparing, run: Path) -> None:
    report = sparing("bench", "generate", run, *EARLY, "--json").json()
    assert report["size"] == "full"
    assert report["model"]["dim"] == 16


def test_cutoffs_measures_synthetic_words_and_a_text(sparing: Sparing, corpus: Path) -> None:
    words = ("bench", "cutoffs", "--words", 300, "--turns", 1, "--clusters", 2)
    report = sparing(*words, "--data", corpus, "--json").json()
    assert {"commit", "processor", "command"} <= report.keys()
    for name in ("300 words by Zipf's law", str(corpus)):
        assert len(report[name]["2 clusters"]["cutoffs"]) == 2
        assert report[name]["2 clusters"]["elapsed_s"] > 0


def test_results_are_appended_to_a_file(sparing: Sparing, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    for _ in range(2):
        assert sparing("bench", "train", *TINY, *FEW, "--out", path).status == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["bench"] for line in lines] == ["train", "train"]


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["train", "enwik8_sha_rn"], "did you mean 'enwik8_sha_rnn'?"),
        (["train", *TINY, *CPU, "--steps", "0"], "steps must be at least 1"),
        (["train", *TINY, "--threads", "0"], "threads must be from 1 to 4096"),
        (["train", "--set", "model.dmi=3"], "did you mean 'model.dim'?"),
        (["train", *TINY, "--out", "no/such/folder.jsonl"], "cannot be written to"),
        (["train", "--size", "huge"], "huge"),
        (["train", "--device", "cuda:99"], "CUDA device"),
        (["generate", *TINY, "--length", "0"], "length must be at least 1"),
        (["generate", *TINY, "--position", "5", *CPU], "too early"),
        (["generate", "no/such/run"], "does not exist"),
    ],
)
def test_bad_input_is_one_line(sparing: Sparing, words: list[str], answer: str) -> None:
    said = sparing("bench", *words)
    assert said.status == 2
    assert len(said.err.splitlines()) == 1
    assert answer in said.err


def test_cost_reports_blocks_and_the_error_of_their_sum(
    sparing: Sparing, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sparing.search import cost

    monkeypatch.setattr(cost, "TURNS", 1)
    monkeypatch.setattr(cost, "LAPS", 1)
    small = [
        "--set",
        "model.dim=8",
        "--set",
        "model.boom.dim=8",
        "--set",
        "model.relative.head_dim=4",
    ]
    report = sparing("bench", "cost", *small, *FEW[:-2], "--stacks", "3", "--json").json()
    assert set(report["regimes"]) == {"train", "prefill", "decode"}
    assert set(report["regimes"]["decode"]["blocks_ms"]) == set("lsaxgbfi")
    assert len(report["stacks"]) == 3
    assert report["mean_error"] >= 0
    assert sparing("bench", "cost", "quickstart", *CPU).status == 2
