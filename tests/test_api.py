"""Train and evaluate from Python, with the results of the command line."""

import json
from pathlib import Path
from typing import Any

import pytest

import sparing
from sparing.cli.main import main
from sparing.errors import UserError

SETTINGS: dict[str, Any] = {
    "model.dim": 16,
    "model.boom_dim": 32,
    "model.memory": 64,
    "train.batch": 4,
    "train.segment": 16,
    "train.steps": 6,
    "evaluate.batch": 4,
    "evaluate.segment": 32,
}


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPARING_HOME", str(tmp_path / "home"))
    path = tmp_path / "text.txt"
    path.write_text("".join(f"line {n}: the quick brown fox, {n * n} dogs\n" for n in range(300)))
    return path


@pytest.fixture
def lm(corpus: Path, tmp_path: Path) -> sparing.LM:
    out = tmp_path / "run"
    return sparing.train("quickstart", data=corpus, out=out, progress=False, **SETTINGS)


def test_a_model_trained_in_python_is_a_run_like_any_other(
    lm: sparing.LM, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again, words = tmp_path / "again", [f"--set={name}={value}" for name, value in SETTINGS.items()]
    call = ["train", "quickstart", "--data", str(corpus), "--out", str(again), "--quiet", *words]
    assert main(call) == 0
    assert sparing.load(again).generate("line", length=20) == lm.generate("line", length=20)
    for split in ("valid", "test"):
        capsys.readouterr()
        assert main(["evaluate", str(again), "--split", split, "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        found = sparing.evaluate(lm, split=split)  # type: ignore[arg-type]  # a literal
        assert found.bits_per_byte == pytest.approx(said["bits_per_byte"], rel=1e-6)
        assert (found.size_bytes, found.how) == (said["bytes"], said["how"])


def test_a_run_is_continued(lm: sparing.LM, tmp_path: Path) -> None:
    more = sparing.train(out=tmp_path / "run", resume=True, progress=False, **{"train.steps": 9})
    assert more.config.train.steps == 9
    assert json.loads((tmp_path / "run" / "results.json").read_text())["training"]["steps"] == 9


def test_a_run_starts_from_the_weights_of_another(lm: sparing.LM, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("other words\n" * 400)
    frozen = {"train.steps": 1, "train.batch": 4, "train.segment": 16, "optim.lr": 0.0}
    tuned = sparing.train(
        init=tmp_path / "run", data=other, out=tmp_path / "tuned", progress=False, **frozen
    )
    # Nothing is learned at a rate of zero, so that the weights are seen as they were at the start.
    assert tuned.generate("line", length=20) == lm.generate("line", length=20)
    assert tuned.config.data.corpus == str(other)


def test_a_text_and_other_data_are_scored(lm: sparing.LM, tmp_path: Path) -> None:
    text = "line 7: the quick brown fox"
    found = sparing.evaluate(lm, text=text)
    assert found.loss_nats == pytest.approx(lm.score(text)[0].loss_nats, rel=1e-4)
    assert sparing.evaluate(lm, text=text.encode()).bits_per_byte == found.bits_per_byte
    other = tmp_path / "other.txt"
    other.write_text("other words\n" * 400)
    scored = sparing.evaluate(tmp_path / "run", data=other, split="test", size=100)
    assert scored.size_bytes == 100
    assert scored.bits_per_byte != sparing.evaluate(lm, split="test", size=100).bits_per_byte


def test_errors_speak_of_arguments_and_not_of_options(
    lm: sparing.LM, corpus: Path, tmp_path: Path
) -> None:
    for call, said in (
        (lambda: sparing.load(tmp_path / "no"), "`sparing.train` creates one"),
        (lambda: sparing.train("quickstart", out=" "), "`out` is empty"),
        (lambda: sparing.train(), "name a recipe"),
        (lambda: sparing.train(resume=True), "resume=True needs `out`"),
        (lambda: sparing.train("quickstart", out=tmp_path / "run"), "pass resume=True"),
        (lambda: sparing.train(init="bundled"), "text to fine-tune on with `data`"),
        (lambda: sparing.train("quickstart", init=" "), "`init` is empty"),
        (lambda: sparing.train(init="bundled", out="x", resume=True), "`init` starts a new run"),
        (lambda: sparing.train("quickstart", data=" ", out="x"), "`data` is empty"),
        (lambda: sparing.train("quickstart", **{"model.dime": 3}), "model.dim"),
        (lambda: sparing.evaluate(lm, split="tset"), "did you mean 'test'"),  # type: ignore[arg-type]
        (lambda: sparing.evaluate(lm, text="a", data="b"), "leave `data`"),
        (lambda: sparing.evaluate(lm, text=""), "empty"),
        (lambda: lm.generate("a", after=sparing.load().state("b")), "another model"),
        (lambda: lm.logits("a", after=sparing.load(tmp_path / "run").state("b")), "another model"),
    ):
        with pytest.raises(UserError) as refused:
            call()
        assert said in str(refused.value)
        assert "--" not in str(refused.value)


def test_a_corpus_that_cannot_be_had_is_not_asked_for_by_an_option(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPARING_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SPARING_DATA", raising=False)
    with pytest.raises(UserError, match=r"give a copy with the variable SPARING_DATA"):
        sparing.evaluate(data="text8-prefix")


def test_a_model_without_a_folder_scores_texts_only(lm: sparing.LM) -> None:
    alone = sparing.LM(lm.model, lm.vocab, lm.config, lm.hardware)
    assert sparing.evaluate(alone, text="abc").size_bytes == 3
    with pytest.raises(UserError, match="no run folder"):
        sparing.evaluate(alone)
