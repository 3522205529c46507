"""Adaptive Span from the command line: train, resume, evaluate, generate, plot, import."""

import json
from pathlib import Path

import torch
from tests.cli.conftest import Sparing
from tests.runs.released.test_adaptive_span import published

SMALL = [
    "data.vocab=bytes",
    "model.dim=16",
    "model.depth=2",
    "model.heads=2",
    "model.ff_dim=16",
    "model.span_limit=64",
    "model.ramp=4",
    "train.batch=4",
    "train.segment=16",
    "train.log_every=2",
    "train.checkpoint_every=4",
    "schedule.warmup=4",
    "evaluate.batch=4",
]


def words(*more: str) -> list[str]:
    return [word for setting in (*SMALL, *more) for word in ("--set", setting)]


def losses(run: Path) -> list[tuple[int, float, float]]:
    entries = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    trained = [entry for entry in entries if entry["kind"] == "train"]
    return [(e["step"], e["nats_per_token"], e["span.0.0"]) for e in trained]


def test_a_resumed_run_is_bit_equal_and_works_with_every_command(
    sparing: Sparing, corpus: Path, tmp_path: Path
) -> None:
    name, whole, cut = "enwik8_adaptive_span_small", tmp_path / "whole", tmp_path / "cut"
    base = ("train", name, "--data", corpus, "--quiet", "--device", "cpu")
    assert sparing(*base, "--out", whole, *words("train.steps=12")).status == 0
    assert sparing(*base, "--out", cut, *words("train.steps=6")).status == 0
    again = ("train", "--resume", "--out", cut, "--set", "train.steps=12")
    assert sparing(*again, "--quiet", "--device", "cpu").status == 0
    assert losses(cut) == losses(whole)
    scored = sparing("evaluate", cut, "--split", "test", "--json").json()
    assert 0 < scored["bits_per_byte"] < 9
    written = sparing("generate", cut, "--prompt", "line 7", "--length", 12, "--json")
    assert written.status == 0, written.err
    drawn = sparing("plot", cut, "--what", "spans", "--json").json()["files"]
    assert [Path(file).name for file in drawn] == ["spans.png", "spans-training.png"]


def test_an_imported_checkpoint_generates_text(sparing: Sparing, tmp_path: Path) -> None:
    file, run = tmp_path / "enwik8.pt", tmp_path / "run"
    torch.save(published(), file, _use_new_zipfile_serialization=False)
    said = sparing("import", "adaptive-span", file, "--out", run, "--json")
    assert said.json()["recipe"] == "enwik8_adaptive_span"
    assert sparing("generate", run, "--prompt", "<page>", "--length", 8).status == 0
    assert sparing("info", run, "--json").json()["family"] == "adaptive_span"
    refused = sparing("import", "adaptive-span", Path(__file__), "--out", tmp_path / "other")
    assert (refused.status, refused.err.count("\n")) == (2, 1)
    assert not (tmp_path / "other").exists()
    unknown = sparing("import", "adaptive-spam", file)
    assert (unknown.status, unknown.err.count("\n")) == (2, 1)
