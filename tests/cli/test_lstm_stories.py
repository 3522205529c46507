"""The LSTM baselines from the command line: train, resume, fine-tune, evaluate, generate."""

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Sparing

from sparing.training.journal import TIMINGS, read

SMALL = [
    "model.dim=12", "model.hidden_dim=16", "train.batch=4", "train.segment=12", "train.log_every=2",
    "evaluate.batch=16", "evaluate.segment=64", "train.steps=12", "train.evaluate_every=6",
]  # fmt: skip
RUNS = {
    "enwik8_awd_lstm": ["train.longest=16"],
    "wikitext2_awd_lstm": ["train.longest=16", "optim.lr=1", "optim.patience=1"],
    "wikitext103_awd_qrnn": ["train.longest=16", "model.cutoffs=20,100,300"],
    "enwik8_mlstm": [],
}


def words(*settings: str) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def start(sparing: Sparing, name: str, corpus: Path, out: Path, *more: str) -> None:
    settings = words(*SMALL, *RUNS[name], *more)
    said = sparing("train", name, "--data", corpus, "--out", out, *settings, "--quiet")
    assert said.status == 0, said.err


def numbers(path: Path) -> list[dict[str, object]]:
    return [
        {key: value for key, value in entry.items() if key not in TIMINGS}
        for entry in read(path / "metrics.jsonl")
        if entry["kind"] == "train"
    ]


@pytest.mark.parametrize("name", RUNS)
def test_an_lstm_trains_evaluates_generates_and_scores(
    name: str, sparing: Sparing, corpus: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    start(sparing, name, corpus, out)
    report = sparing("evaluate", out, "--split", "test", "--json").json()
    assert 0 < report["bits_per_byte"] < 12
    assert sparing("generate", out, "--prompt", "the quick", "--length", 5).status == 0
    assert sparing("score", out, "--text", "the quick brown", "--json").status == 0
    assert sparing("evaluate", out, "--cache", 50, "--json").status == 0


@pytest.mark.parametrize("name", RUNS)
def test_a_resumed_run_is_bit_equal(
    name: str, sparing: Sparing, corpus: Path, tmp_path: Path
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    # A constant rate: a decay would know of the longer budget.
    plain = ("schedule.shape=constant", "train.evaluate_every=4")
    start(sparing, name, corpus, whole, *plain)
    start(sparing, name, corpus, cut, *plain, "train.steps=8")
    said = sparing("train", "--resume", "--out", cut, "--set", "train.steps=12", "--quiet")
    assert said.status == 0, said.err
    assert numbers(cut) == numbers(whole)
    for file in ("model", "optimizer", "state"):
        path = Path("checkpoints") / "last" / f"{file}.safetensors"
        assert (cut / path).read_bytes() == (whole / path).read_bytes(), file


def test_fine_tuning_is_a_second_pass_with_averaging(
    sparing: Sparing, corpus: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    start(sparing, "wikitext2_awd_lstm", corpus, out)
    said = sparing(
        "train", "--resume", "--checkpoint", "best", "--out", out, "--quiet",
        *words("optim.name=asgd", "train.steps=24"),
    )  # fmt: skip
    assert said.status == 0, said.err
    resumed = json.loads((out / "provenance.json").read_text())["resumed"]
    assert 'optim.name: "ntasgd" -> "asgd"' in resumed[-1]["changed"]
    assert read(out / "metrics.jsonl")[-1]["step"] == 24
