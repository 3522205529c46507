"""Transformer-XL from the command line: bytes and words, other settings at test time, dynamic."""

import json
import os
from pathlib import Path

import pytest
from tests.cli.conftest import Sparing

SMALL = [
    "model.dim=16", "model.depth=2", "model.heads=2", "model.head_dim=8", "model.ff_dim=32",
    "model.memory=16", "train.batch=4", "train.segment=16", "train.steps=30", "train.log_every=10",
    "train.evaluate_every=0", "evaluate.batch=4", "evaluate.segment=16", "optim.lr=3e-3",
]  # fmt: skip
# Read before a fixture hides it from the other tests.
DATA = Path(os.environ.get("SPARING_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
TEST_TIME = ["model.memory=64", "model.clamp=12", "model.same_length=true"]


def settings(*more: str) -> list[str]:
    return [word for setting in (*SMALL, *more) for word in ("--set", setting)]


@pytest.fixture
def xl(sparing: Sparing, corpus: Path, tmp_path: Path) -> Path:
    path = tmp_path / "xl"
    words = ("--data", corpus, "--out", path, "--quiet", *settings())
    said = sparing("train", "enwik8_transformer_xl", *words)
    assert said.status == 0, said.err
    return path


def bits(said: object) -> float:
    return float(said.json()["bits_per_byte"])  # type: ignore[attr-defined]


def test_memory_settings_can_change_at_evaluation(xl: Path, sparing: Sparing) -> None:
    plain = sparing("evaluate", xl, "--split", "test", "--json")
    assert plain.status == 0, plain.err
    changed = [word for setting in TEST_TIME for word in ("--set", setting)]
    longer = sparing("evaluate", xl, "--split", "test", "--segment", 8, *changed, "--json")
    assert longer.status == 0, longer.err
    assert bits(longer) != bits(plain)
    # With equal lengths the reading in segments does not matter, nor does what is kept.
    other = sparing("evaluate", xl, "--split", "test", "--segment", 5, *changed, "--json")
    assert bits(other) == pytest.approx(bits(longer), rel=1e-5)
    hidden = sparing(
        "evaluate", xl, "--split", "test", "--segment", 8, *changed,
        "--set", "model.cache=hidden", "--json",
    )  # fmt: skip
    assert bits(hidden) == pytest.approx(bits(longer), rel=1e-5)
    refused = sparing("evaluate", xl, "--set", "model.dim=32")
    assert refused.status == 2
    assert "does not fit" in refused.err


def test_memory_lengths_can_be_swept(xl: Path, sparing: Sparing) -> None:
    rows = sparing("evaluate", xl, "--memory", "0,16,64", "--json").json()["memory"]
    assert len({row["bits_per_byte"] for row in rows}) == 3


def test_newlines_are_removed_as_in_the_original(xl: Path, sparing: Sparing) -> None:
    report = sparing("evaluate", xl, "--split", "test", "--json").json()
    config = json.loads((xl / "config.json").read_text())
    assert config["data"]["newlines"] is False
    assert report["bytes"] == report["tokens"]


def test_dynamic_results_are_reported_next_to_static_ones(xl: Path, sparing: Sparing) -> None:
    static = sparing("evaluate", xl, "--split", "test", "--json").json()
    said = sparing("evaluate", xl, "--split", "test", "--dynamic", "--dynamic-lr", 1e-3, "--json")
    assert said.status == 0, said.err
    report = said.json()
    assert report["loss_nats"] == static["loss_nats"]
    assert report["dynamic"]["loss_nats"] < static["loss_nats"]
    assert report["dynamic"]["tokens"] == static["tokens"]
    assert "rms" in report["dynamic"]["how"]
    results = json.loads((xl / "results.json").read_text())
    adapted = results["test, no-newlines, dynamic lr 0.001"]
    assert adapted["loss_nats"] == report["dynamic"]["loss_nats"]
    assert "dynamic" not in results["test, no-newlines"]
    plain = sparing("evaluate", xl, "--dynamic", "--dynamic-rule", "sgd", "--segment", 16)
    assert plain.status == 0
    assert "sgd" in plain.out
    refused = sparing("evaluate", xl, "--dynamic", "--window", 8)
    assert refused.status == 2
    assert "--window" in refused.err
    assert "Traceback" not in refused.err


def test_a_transformer_xl_resumes_generates_and_scores(
    xl: Path, sparing: Sparing, tmp_path: Path
) -> None:
    resumed = sparing("train", "--resume", "--out", xl, "--set", "train.steps=34", "--quiet")
    assert resumed.status == 0, resumed.err
    one = sparing("generate", xl, "--prompt", "line 7", "--length", 40, "--seed", 3)
    two = sparing("generate", xl, "--prompt", "line 7", "--length", 40, "--seed", 3)
    assert one.status == 0, one.err
    assert one.out == two.out
    file = tmp_path / "texts"
    file.write_text("the quick brown fox\n")
    assert sparing("score", xl, file, "--json").status == 0


@pytest.mark.parametrize("shrink", [1, 4])
def test_an_adaptive_softmax_trains_evaluates_and_generates(
    shrink: int, sparing: Sparing, corpus: Path, tmp_path: Path
) -> None:
    path = tmp_path / "words"
    words = ("--data", corpus, "--out", path, "--quiet")
    more = settings("model.cutoffs=8,100", f"model.shrink={shrink}")
    said = sparing("train", "wikitext103_transformer_xl", *words, *more)
    assert said.status == 0, said.err
    report = sparing("evaluate", path, "--split", "test", "--json").json()
    assert report["perplexity_per_word"] > 1
    assert sparing("generate", path, "--prompt", "the quick ", "--length", 8).status == 0


def test_cutoffs_beyond_the_vocabulary_are_refused(
    sparing: Sparing, corpus: Path, tmp_path: Path
) -> None:
    path = tmp_path / "refused"
    words = ("--data", corpus, "--out", path, "--quiet", *settings())
    said = sparing("train", "wikitext103_transformer_xl", *words)
    assert said.status == 2
    assert "cutoffs" in said.err
    assert len(said.err.splitlines()) == 1
    assert not (path / "config.json").exists()


@pytest.mark.soak
def test_wikitext_2_in_words(
    sparing: Sparing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not (DATA / "wikitext-2.tar.xz").exists():
        pytest.skip("no copy of wikitext-2 in SPARING_DATA or ../shared/data")
    monkeypatch.setenv("SPARING_DATA", str(DATA))
    path = tmp_path / "wikitext2"
    more = settings(
        "data.corpus=wikitext-2", "model.cutoffs=2000,10000", "model.dim=64", "model.ff_dim=128",
        "train.steps=100", "train.segment=32", "train.batch=8", "evaluate.segment=64",
        "train.evaluate_bytes=20000", "model.shrink=4", "evaluate.batch=10",
    )  # fmt: skip
    said = sparing("train", "wikitext103_transformer_xl", "--out", path, "--quiet", *more)
    assert said.status == 0, said.err
    for split, tokens in (("valid", 217_646), ("test", 245_569)):
        report = sparing("evaluate", path, "--split", split, "--json").json()
        assert report["tokens"] == tokens
        assert 10 < report["perplexity_per_word"] == report["perplexity_per_token"] < 33_278
