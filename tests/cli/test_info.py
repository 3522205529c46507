"""`sparing info`: cost per token, and per byte if a token is a byte."""

from pathlib import Path

import pytest
from tests.cli.conftest import Sparing

from sparing import load


def test_flops_per_byte_equal_flops_per_token_of_a_byte_model(sparing: Sparing) -> None:
    report = sparing("info", "enwik8_sha_rnn", "--json").json()
    assert {"parameters", "state_bytes"} <= report.keys()
    assert report["flops_per_byte"] == report["flops_per_token"] == pytest.approx(124e6, rel=0.01)


@pytest.mark.parametrize("vocab", ["words", "characters", "pieces"])
def test_other_vocabularies_have_no_flops_per_byte(vocab: str, sparing: Sparing) -> None:
    report = sparing("info", "quickstart", "--set", f"data.vocab={vocab}", "--json").json()
    assert "flops_per_byte" not in report
    assert report["flops_per_token"] > 0


def test_a_word_recipe_has_flops_per_token(sparing: Sparing) -> None:
    report = sparing("info", "wikitext2_awd_lstm", "--json").json()
    assert "flops_per_byte" not in report
    assert report["flops_per_token"] > 0


def test_the_cost_of_a_run(run: Path, sparing: Sparing) -> None:
    report = sparing("info", run, "--json").json()
    assert report["flops_per_byte"] == report["flops_per_token"] > 0


def test_the_report_of_a_run_fits_the_line_width(run: Path, sparing: Sparing) -> None:
    lines = sparing("info", run).out.splitlines()
    # A path stays in one piece.
    assert [line for line in lines if len(line) > 100 and "/" not in line] == []
    words = " ".join(" ".join(lines).split())
    assert "model sha_rnn, 10,336 parameters (10,880 in training)" in words
    assert ", 12 steps, 768 tokens, " in words
    assert " seed 1111 command " in words
    assert "best valid " in words
    assert "None" not in words


def test_a_model_in_python_has_the_size_that_is_shown(run: Path, sparing: Sparing) -> None:
    lm = load(run)
    report = sparing("info", run, "--json").json()
    assert lm.costs == {name: report[name] for name in lm.costs}
    assert repr(lm) == "LM('quickstart', 10,336 parameters, cpu)"


def test_every_parameter_is_listed_by_the_name_that_settings_use(
    run: Path, sparing: Sparing
) -> None:
    report = sparing("info", run, "--parameters", "--json").json()
    named = dict(load(run).model.named_parameters())
    assert report["named_parameters"] == [
        {"name": name, "shape": list(each.shape), "count": each.numel()}
        for name, each in named.items()
    ]
    assert report["parameters"]["training"] == sum(each.numel() for each in named.values())
    lines = sparing("info", run, "--parameters").out.splitlines()
    assert lines[-len(named)].split() == ["embedding.weight", "256x16", "4,096"]


def test_parameters_of_a_recipe_and_of_the_packages_model_are_listed(sparing: Sparing) -> None:
    said = sparing("info", "quickstart", "--set", "model.dim=8", "--parameters").out
    assert ["embedding.weight", "256x8", "2,048"] in [line.split() for line in said.splitlines()]
    assert "blocks.0.init_states.cell" in sparing("info", "--parameters").out
    assert "blocks.0.init_states.cell" not in sparing("info").out


@pytest.mark.parametrize(
    "setting",
    [
        "ngrams.lengths=1",
        "ngrams.rows=1000",
        "ngrams.dim=0",
        "windowed.head_dim=15",
        "windowed.span_starts=-1",
        "shrink=0",
    ],
)
def test_impossible_model_settings_are_refused_in_one_line(setting: str, sparing: Sparing) -> None:
    said = sparing("info", "enwik8_20min_span", "--set", f"model.{setting}")
    assert said.status == 2
    assert said.err.startswith("sparing: bad setting: ")
    assert said.err.count("\n") == 1
