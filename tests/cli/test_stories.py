"""From the command line: train, evaluate, resume, generate."""

import json
import re
from pathlib import Path

import pytest
from tests.cli.conftest import Sparing, settings

from sparing.runs.recipes import RECIPES
from sparing.training.journal import TIMINGS, read


def test_a_run_folder_is_complete(run: Path) -> None:
    names = {path.name for path in run.iterdir()}
    assert {
        "config.json",
        "provenance.json",
        "metrics.jsonl",
        "results.json",
        "vocab.json",
    } <= names
    assert {path.name for path in (run / "checkpoints").iterdir()} >= {"last", "best"}
    assert not list(run.rglob("*.part"))
    results = json.loads((run / "results.json").read_text())
    assert results["training"]["steps"] == 12
    assert results["training"]["finished_s"] > results["training"]["elapsed_s"]
    provenance = json.loads((run / "provenance.json").read_text())
    assert {"commit", "versions", "device", "command", "seed"} <= provenance.keys()


def test_evaluate_prints_exact_figures(run: Path, sparing: Sparing) -> None:
    said = sparing("evaluate", run, "--split", "test", "--json")
    assert said.status == 0
    report = said.json()
    assert report["protocol"] == "bytes"
    assert report["tokens"] == report["bytes"]
    assert 0 < report["bits_per_byte"] < 9
    assert json.loads((run / "results.json").read_text())["test"]["bytes"] == report["bytes"]
    other = sparing(
        "evaluate", run, "--split", "test", "--protocol", "no-newlines", "--json"
    ).json()
    assert other["bytes"] < report["bytes"]
    assert other["protocol"] == "no-newlines"
    windows = sparing("evaluate", run, "--split", "test", "--window", 64, "--stride", 16, "--json")
    assert windows.json()["bytes"] == report["bytes"]
    few = sparing("evaluate", run, "--bytes", 100, "--json").json()
    assert few["bytes"] == 100


def test_results_with_a_cache_have_their_own_entry(run: Path, sparing: Sparing) -> None:
    plain = sparing("evaluate", run, "--split", "test", "--json").json()
    words = ("evaluate", run, "--split", "test", "--json", "--cache", 200)
    found = sparing(*words, "--cache-theta", 0.5, "--cache-lambda", 0.2).json()
    assert found["bytes"] == plain["bytes"]
    assert found["bits_per_byte"] != plain["bits_per_byte"]
    assert found["how"].endswith("cache 200, theta 0.5, lambda 0.2")
    results = json.loads((run / "results.json").read_text())
    assert results["test"]["bits_per_byte"] == plain["bits_per_byte"]
    column = results["test, cache 200 theta 0.5 lambda 0.2"]
    assert column["bits_per_byte"] == found["bits_per_byte"]
    for wrong in (("--cache-lambda", 1), ("--window", 8)):
        said = sparing(*words, *wrong)
        assert said.status == 2
        assert len(said.err.strip().splitlines()) == 1


def test_memory_can_be_swept_and_switched_off(run: Path, sparing: Sparing) -> None:
    rows = sparing("evaluate", run, "--memory", "0,16,64", "--json").json()["memory"]
    assert [row["memory"] for row in rows] == [0, 16, 64]
    assert len({row["bits_per_byte"] for row in rows}) == 3


def test_loss_against_context(run: Path, sparing: Sparing) -> None:
    curve = sparing("evaluate", run, "--context", 32, "--json").json()
    assert "1-1" in curve
    assert all(point["bits_per_byte"] > 0 for point in curve.values())


def test_a_run_resumed_with_more_steps_equals_a_longer_run(
    sparing: Sparing, corpus: Path, tmp_path: Path
) -> None:
    # A constant rate: one that anneals would have known of the longer budget from the start.
    path, flat = tmp_path / "flat", settings("schedule.shape=constant")
    sparing("train", "quickstart", "--data", corpus, "--out", path, *flat, "--quiet")
    said = sparing("train", "--resume", "--out", path, "--set", "train.steps=20", "--quiet")
    assert said.status == 0, said.err
    whole = tmp_path / "whole"
    more = settings("schedule.shape=constant", "train.steps=20")
    sparing("train", "quickstart", "--data", corpus, "--out", whole, *more, "--quiet")

    def curve(path: Path) -> list[dict[str, object]]:
        return [
            {key: value for key, value in entry.items() if key not in TIMINGS}
            for entry in read(path / "metrics.jsonl")
            if entry["kind"] == "train"
        ]

    assert curve(path) == curve(whole)


def test_the_same_seed_trains_the_same_model(
    run: Path, sparing: Sparing, corpus: Path, tmp_path: Path
) -> None:
    twin = tmp_path / "twin"
    sparing("train", "quickstart", "--data", corpus, "--out", twin, *settings(), "--quiet")
    weights = Path("checkpoints") / "last" / "model.safetensors"
    assert (run / weights).read_bytes() == (twin / weights).read_bytes()


def test_resuming_the_best_checkpoint_with_a_lower_rate(run: Path, sparing: Sparing) -> None:
    said = sparing(
        "train", "--resume", "--checkpoint", "best", "--out", run, "--quiet",
        "--set", "optim.lr=1e-3", "--set", "train.steps=16",
    )  # fmt: skip
    assert said.status == 0, said.err
    entries = [e for e in read(run / "metrics.jsonl") if e["kind"] == "train"]
    assert entries[-1]["step"] == 16
    assert entries[-1]["lr"] < 1e-3
    provenance = json.loads((run / "provenance.json").read_text())
    assert "optim.lr: 0.02 -> 0.001" in provenance["resumed"][0]["changed"]


def test_generate_streams_and_is_reproducible(run: Path, sparing: Sparing) -> None:
    one = sparing("generate", run, "--prompt", "line ", "--length", 30, "--seed", 3)
    two = sparing("generate", run, "--prompt", "line ", "--length", 30, "--seed", 3)
    assert one.status == 0
    assert one.out == two.out
    assert one.out.startswith("line ")
    long = "the quick brown fox " * 20
    batch = sparing("generate", run, "--prompt", "a", "--prompt", long, "--length", 5, "--json")
    assert [each["tokens"] for each in batch.json()["completions"]] == [5, 5]


def test_ranking_by_bits_per_byte_does_not_favour_short_texts(run: Path, sparing: Sparing) -> None:
    texts = ("--text", "z", "--text", "the quick brown fox jumps over")
    order = {
        words: [
            each["text"]
            for each in sparing("score", run, *texts, "--json", *words).json()["scores"]
        ]
        for words in (("--rank",), ("--rank", "--per-byte"))
    }
    assert order["--rank",][0] == "z"
    assert order["--rank", "--per-byte"][0] != "z"
    assert sparing("score", run, *texts, "--per-byte").status == 2


def test_score_prints_and_ranks(run: Path, sparing: Sparing, tmp_path: Path) -> None:
    file = tmp_path / "sentences"
    file.write_text("zzqx vvkj\nthe quick brown fox\n")
    said = sparing("score", run, file, "--json", "--rank", "--per-token")
    assert said.status == 0, said.err
    scores = said.json()["scores"]
    assert scores[0]["log_probability"] >= scores[1]["log_probability"]
    for item in scores:
        total = sum(token["nats"] for token in item["per_token"])
        assert total == pytest.approx(-item["log_probability"], rel=1e-6)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_has_a_cost(name: str, sparing: Sparing) -> None:
    report = sparing("info", name, "--json").json()
    assert report["parameters"]["deployed"] <= report["parameters"]["training"]
    assert report["flops_per_token"] > 0
    assert report["state_bytes"] > 0


def test_parameters_of_the_original_sha_rnn_models(sparing: Sparing) -> None:
    found = {
        name: sparing("info", name, "--json").json()["parameters"]
        for name in ("enwik8_sha_rnn", "enwik8_sha_rnn_4", "enwik8_sha_rnn_0")
    }
    assert found["enwik8_sha_rnn"] == {"training": 53_773_517, "deployed": 51_674_317}
    assert found["enwik8_sha_rnn_4"]["deployed"] == 54_850_765
    assert found["enwik8_sha_rnn_0"]["deployed"] == 50_615_501


def test_info_of_a_run_and_lists(run: Path, sparing: Sparing) -> None:
    report = sparing("info", run, "--json").json()
    assert report["results"]["training"]["steps"] == 12
    shown, _, hint = sparing("recipes").out.partition("\n\n")
    assert "sparing info RECIPE" in hint
    assert set(re.findall(r"^(\w+)", shown, re.MULTILINE)) == set(RECIPES)
    assert "Expect about" not in shown
    assert "Expect about" in sparing("info", "quickstart").out
    assert set(sparing("recipes", "--json").json()) == set(RECIPES)
    assert "enwik8" in sparing("data", "list", "--json").json()
    assert sparing("--version").out.strip()


@pytest.mark.parametrize("vocab", ["characters", "words", "symbols"])
def test_other_vocabularies_train_evaluate_and_generate(
    vocab: str, sparing: Sparing, corpus: Path, tmp_path: Path
) -> None:
    path = tmp_path / vocab
    more = settings(f"data.vocab={vocab}")
    said = sparing("train", "quickstart", "--data", corpus, "--out", path, *more, "--quiet")
    assert said.status == 0, said.err
    report = sparing("evaluate", path, "--split", "test", "--json").json()
    # Of bytes or characters it would be a number of twelve digits that nobody publishes.
    assert ("perplexity_per_word" in report) == (vocab == "words")
    assert sparing("generate", path, "--prompt", "the quick ", "--length", 8).status == 0


def test_every_setting_is_explained(sparing: Sparing) -> None:
    said = sparing("info", "quickstart", "--config").out
    assert "train.segment=128\n    Tokens per lane and step" in said
    assert "model.attention_at=1\n    Blocks, counted from 0" in said
    blocks = said.split("\n\n")[1:]
    assert len(blocks) > 40
    assert all(len(block.splitlines()) == 2 and block.splitlines()[1].strip() for block in blocks)


def test_without_a_command_help_is_printed(sparing: Sparing) -> None:
    for words in ([], ["data"], ["bench"]):
        said = sparing(*words)
        assert said.status == 0
        assert said.out.startswith("Usage: sparing")
