"""enwik8 from a local copy to both protocols' figures."""

import os
from pathlib import Path

import pytest
from tests.cli.conftest import Sparing

FOLDER = Path(os.environ.get("SPARING_DATA", Path(__file__).parents[3] / "shared" / "data"))


@pytest.mark.skipif(not (FOLDER / "enwik8.xz").exists(), reason="no local copy of enwik8")
def test_enwik8_end_to_end(sparing: Sparing, tmp_path: Path) -> None:
    out, local = tmp_path / "run", FOLDER / "enwik8.xz"
    small = [
        "model.dim=32", "model.boom_dim=64", "model.memory=128", "train.segment=32",
        "train.steps=200", "train.evaluate_bytes=20000", "schedule.warmup=20",
    ]  # fmt: skip
    words = [word for setting in small for word in ("--set", setting)]
    said = sparing("train", "enwik8_sha_rnn", "--from", local, "--out", out, *words, "--quiet")
    assert said.status == 0, said.err
    report = ("evaluate", out, "--split", "test", "--bytes", 100_000, "--json")
    every = sparing(*report).json()
    assert (every["bytes"], every["protocol"]) == (100_000, "bytes")
    assert every["bits_per_byte"] < 5
    stripped = sparing(*report, "--protocol", "no-newlines").json()
    assert stripped["tokens"] == stripped["bytes"] == 98_862
    assert stripped["protocol"] == "no-newlines"
