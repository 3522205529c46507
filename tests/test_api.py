"""Train and evaluate from Python, with the results of the command line."""

import ast
import hashlib
import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import sparing
from sparing.cli import search as cli_search
from sparing.cli import verify as cli_verify
from sparing.cli.main import main
from sparing.errors import UserError
from sparing.runs.train import TrainOptions
from sparing.training import loop, stopping
from sparing.training.state import Training

ROOT = Path(__file__).parents[1]
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


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Two Ctrl-C during the second step; the signals that would have ended this process."""
    ended: list[int] = []
    monkeypatch.setattr(stopping, "end_now", ended.append)
    monkeypatch.setattr(loop, "update_progress_bar", interrupt_twice)
    # A shell ignores Ctrl-C for processes in the background.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield ended
    signal.signal(signal.SIGINT, before)


def interrupt_twice(training: Training, *_: object) -> None:
    if training.counters.step == 2:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)


def test_a_second_ctrl_c_is_an_exception_and_leaves_a_run_that_continues(
    corpus: Path, tmp_path: Path, impatient: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, more = tmp_path / "run", SETTINGS | {"train.checkpoint_every": 1}
    with pytest.raises(KeyboardInterrupt) as interrupted:
        sparing.train("quickstart", data=corpus, out=out, progress=False, **more)
    # Python's own, without the words that follow a checkpoint.
    assert (str(interrupted.value), impatient) == ("", [])
    monkeypatch.setattr(loop, "update_progress_bar", lambda *_: None)
    done = sparing.train(out=out, resume=True, progress=False)
    assert done.folder is not None
    assert done.folder.step("last") == 6


def test_a_second_ctrl_c_ends_a_command(corpus: Path, tmp_path: Path, impatient: list[int]) -> None:
    words = [f"--set={name}={value}" for name, value in SETTINGS.items()]
    out = ["--out", str(tmp_path / "run")]
    status = main(["train", "quickstart", "--data", str(corpus), *out, "--quiet", *words])
    assert (status, impatient) == (130, [signal.SIGINT])


@pytest.mark.parametrize(
    ("module", "trains", "call"),
    [
        (cli_search, "search_run", ["search", "enwik8_par_search"]),
        (cli_verify, "train_like", ["verify", "enwik8_small"]),
    ],
    ids=["search", "verify"],
)
def test_every_command_that_trains_may_be_ended(
    module: ModuleType,
    trains: str,
    call: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[TrainOptions] = []

    def note(*given: object) -> Any:
        seen.extend(each for each in given if isinstance(each, TrainOptions))
        return (signal.SIGINT, {}) if trains == "search_run" else signal.SIGINT

    monkeypatch.setattr(module, trains, note)
    assert main([*call, "--out", str(tmp_path / "run"), "--device", "cpu"]) == 130
    assert [options.exit_on_second_interrupt for options in seen] == [True]


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


def test_a_figure_is_that_of_the_command_in_the_precision_of_the_run(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, narrow = tmp_path / "run", SETTINGS | {"train.precision": "bfloat16"}
    lm = sparing.train("quickstart", data=corpus, out=path, progress=False, **narrow)
    nats = {}
    for precision in ("auto", "float32"):
        capsys.readouterr()
        assert main(["evaluate", str(path), "--precision", precision, "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        for model in (lm, path):
            found = sparing.evaluate(model, precision=precision)  # type: ignore[arg-type]
            assert (found.loss_nats, found.precision) == (said["loss_nats"], said["precision"])
        nats[said["precision"]] = said["loss_nats"]
    assert nats.keys() == {"bfloat16", "float32"}
    assert nats["bfloat16"] != nats["float32"]
    assert sparing.evaluate(lm, text="a few words").precision == "bfloat16"
    # Without its folder, a model still has its settings.
    alone = sparing.LM(lm.model, lm.vocab, lm.config, lm.hardware)
    assert sparing.evaluate(alone, text="a few words").precision == "bfloat16"


def test_what_would_be_ignored_is_refused(lm: sparing.LM, tmp_path: Path) -> None:
    for call, said in (
        (lambda: sparing.evaluate(lm, device="cpu"), "leave `device` out"),
        (lambda: sparing.evaluate(lm, checkpoint="last"), "leave `checkpoint` out"),
        (lambda: sparing.evaluate(lm, text="a", split="test"), "leave `split` out"),
        (lambda: sparing.evaluate(lm, text="a", data="b", size=3), "leave `data`, `size` out"),
    ):
        with pytest.raises(UserError, match=said):
            call()


def test_the_checkpoint_named_is_evaluated(lm: sparing.LM, tmp_path: Path) -> None:
    out = tmp_path / "run"
    # Worse than `best`, which it does not replace.
    worse: dict[str, Any] = {"train.steps": 8, "optim.lr": 10.0}
    sparing.train(out=out, resume=True, progress=False, **worse)
    last, best = (sparing.evaluate(out, checkpoint=name) for name in ("last", "best"))
    assert last.loss_nats > best.loss_nats == sparing.evaluate(lm).loss_nats


@pytest.mark.parametrize("vocab", ["bytes", "words"])
def test_a_model_without_newlines_scores_texts_without_them(
    vocab: str, corpus: Path, tmp_path: Path
) -> None:
    bare = SETTINGS | {"data.newlines": False, "data.vocab": vocab}
    lm = sparing.train("quickstart", data=corpus, out=tmp_path / "run", progress=False, **bare)
    found = sparing.evaluate(lm, text="the quick \nbrown\n fox")
    joined = sparing.evaluate(lm, text="the quick brown fox")
    assert (found.size_bytes, found.loss_nats) == (19, joined.loss_nats)
    assert found.protocol == sparing.evaluate(lm).protocol == "no-newlines"


def test_a_wrong_call_is_refused_in_words_that_fit_python(
    lm: sparing.LM, corpus: Path, tmp_path: Path
) -> None:
    for call, said in (
        (lambda: sparing.load(tmp_path / "no"), "does not exist; `sparing train RECIPE"),
        (lambda: sparing.train("quickstart", out=" "), "`out` is empty"),
        (lambda: sparing.train("quickstart", out="x\udc9b"), "is not UTF-8"),
        (lambda: sparing.train("quickstart", out="x\0"), "has a NUL character"),
        (lambda: sparing.train(str(tmp_path / "run")), "is a run, not a recipe"),
        (lambda: sparing.train(corpus), "is not a recipe; a text of your own is `data`"),
        (
            lambda: sparing.train("quickstart", data=corpus, out="x", **{"data.corpus": "text8"}),
            "`data` and data.corpus are the same",
        ),
        (
            lambda: sparing.train("quickstart", minutes=3, out="x", **{"train.minutes": 4}),
            "`minutes` and train.minutes are the same",
        ),
        (lambda: sparing.train(), "name a recipe"),
        (lambda: sparing.train(resume=True), "`resume` needs `out`"),
        (
            lambda: sparing.train("quickstart", out=tmp_path / "run"),
            "resume it, or choose",
        ),
        (lambda: sparing.train("quickstart", out="x", checkpoint="best"), "`checkpoint` needs"),
        (
            lambda: sparing.train("quickstart", out="x", cut_journal=True),
            "cutting the journal",
        ),
        (lambda: sparing.train(init="bundled"), "text to fine-tune on (`data`)"),
        (lambda: sparing.train("quickstart", init=" "), "`init` is empty"),
        (lambda: sparing.train(init="bundled", out="x", resume=True), "`init` starts a new run"),
        (lambda: sparing.train("quickstart", data=" ", out="x"), "`data` is empty"),
        (lambda: sparing.train("quickstart", **{"model.dime": 3}), "model.dim"),
        (lambda: sparing.evaluate(lm, split="tset"), "did you mean 'test'"),  # type: ignore[arg-type]
        (lambda: sparing.evaluate(lm, text=""), "empty"),
        (lambda: lm.generate("a", after=sparing.load().state("b")), "another model"),
        (lambda: lm.logits("a", after=sparing.load(tmp_path / "run").state("b")), "another model"),
    ):
        with pytest.raises(UserError) as refused:
            call()
        assert said in str(refused.value)


def test_arguments_of_a_wrong_type_are_refused_before_anything_is_done(
    lm: sparing.LM, corpus: Path, tmp_path: Path
) -> None:
    new: dict[str, Any] = {"out": tmp_path / "new", "data": corpus, "progress": False} | SETTINGS
    calls: list[tuple[Callable[..., object], dict[str, Any], str]] = [
        (sparing.load, {"run": 3}, "`run` is str or a path, not int"),
        (sparing.load, {"device": None}, "`device` is str or a torch.device, not NoneType"),
        (sparing.train, new | {"recipe": None}, "`recipe` is str or a path, not NoneType"),
        (sparing.train, new | {"data": [corpus]}, "`data` is str or a path, not list"),
        (sparing.train, new | {"minutes": "3"}, "`minutes` is a number, not str"),
        (sparing.train, new | {"resume": 1}, "`resume` is True or False, not int"),
        (sparing.train, new | {"init": lm}, "`init` is str or a path, not LM"),
        (sparing.evaluate, {"model": lm.model}, "`model` is LM, str or a path, not SHARNN"),
        (sparing.evaluate, {"model": lm, "text": ["a"]}, "`text` is str or bytes, not list"),
        (sparing.evaluate, {"model": lm, "size": 1.5}, "`size` is a whole number, not float"),
        (sparing.evaluate, {"model": lm, "split": 3}, "`split` is str, not int"),
    ]
    for call, given, said in calls:
        with pytest.raises(TypeError) as refused:
            call(**given)
        assert str(refused.value) == said
    assert not (tmp_path / "new").exists()


def test_numbers_of_numpy_and_devices_of_torch_are_arguments_too(
    lm: sparing.LM, corpus: Path, tmp_path: Path
) -> None:
    numbers: dict[str, Any] = {"train.steps": np.int64(2), "optim.lr": np.float32(1e-3)}
    device, new = torch.device("cpu"), {"data": corpus, "progress": False}
    made = sparing.train(
        "quickstart", out=tmp_path / "new", device=device, **new, **SETTINGS | numbers
    )
    assert (made.config.train.steps, made.config.optim.lr) == (2, 1e-3)
    found = sparing.evaluate(lm, size=np.int16(90))  # type: ignore[arg-type]  # numpy's
    assert found.size_bytes == 90


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def test_what_an_error_advises_can_be_done(lm: sparing.LM, tmp_path: Path) -> None:
    out = tmp_path / "run"
    more: dict[str, Any] = {"train.steps": 9}
    damage(out / "checkpoints" / "last" / "model.safetensors")
    with pytest.raises(UserError, match=r"available checkpoints: best$"):
        sparing.train(out=out, resume=True, progress=False, **more)
    with pytest.raises(UserError, match=r"available checkpoints: best$"):
        sparing.evaluate(out, checkpoint="last")
    assert sparing.evaluate(out, checkpoint="best").size_bytes > 0
    damage(out / "metrics.jsonl")
    with pytest.raises(UserError, match=r"\(in Python, `cut_journal=True`\)"):
        sparing.train(out=out, resume=True, checkpoint="best", progress=False, **more)
    done = sparing.train(
        out=out, resume=True, checkpoint="best", cut_journal=True, progress=False, **more
    )
    assert done.config.train.steps == 9


def test_a_second_pass_begins_with_the_best_weights(lm: sparing.LM, tmp_path: Path) -> None:
    out = tmp_path / "run"
    slower: dict[str, Any] = {"train.steps": 8, "optim.lr": 1e-4}
    sparing.train(out=out, resume=True, checkpoint="best", progress=False, **slower)
    cursor = json.loads((out / "checkpoints" / "last" / "cursor.json").read_text())
    assert (cursor["pass_step"], cursor["step"]) == (6, 8)


def test_weights_to_start_from_are_those_of_the_checkpoint_named(
    lm: sparing.LM, tmp_path: Path
) -> None:
    (tmp_path / "other.txt").write_text("a fox, dogs and lines\n" * 200)
    sparing.train(out=tmp_path / "run", resume=True, progress=False, **{"train.steps": 8})
    call: dict[str, Any] = {"data": tmp_path / "other.txt", "out": tmp_path / "tuned"}
    sparing.train("quickstart", init=tmp_path / "run", checkpoint="last", **call, **SETTINGS)
    record = json.loads((tmp_path / "tuned" / "provenance.json").read_text())
    weights = (tmp_path / "run" / "checkpoints" / "last" / "model.safetensors").read_bytes()
    assert record["init"]["sha256"] == hashlib.sha256(weights).hexdigest()


ELSEWHERE = {
    "--from": "a copy of a corpus, on the command line only",
    "--data": "beside --from",
    "--cut-journal": "named beside `cut_journal=True`",
    "--max-bytes": "`sparing data prepare`, which the message names",
    "--until": "`sparing verify`",
    "--max-restarts": "torchrun",
    "--config": "`sparing info`, which the message names",
    "--parameters": "the same",
    "--out": "`sparing train`, which the message names",
    "--resume": "the same",
    "--split": "`sparing evaluate`, which the message names",
}
"""The options in messages of what Python calls too, and whose they are."""


def test_messages_for_python_callers_name_no_option_without_its_command() -> None:
    above = {"cli", "serve", "bench", "search", "experiments", "plot", "export", "compress"}
    named: set[str] = set()
    for path in (ROOT / "src" / "sparing").rglob("*.py"):
        parts = path.relative_to(ROOT / "src" / "sparing").parts
        if not above & {parts[0]} and parts[:2] != ("runs", "recipes"):
            named |= options_in_messages(path)
    gits = {"--error-unmatch", "--short", "--porcelain", "--untracked-files"}
    assert named - gits == ELSEWHERE.keys()


def options_in_messages(path: Path) -> set[str]:
    """The options in a module's strings, which are not its docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    prose = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}
    strings = [
        each.value
        for each in ast.walk(tree)
        if isinstance(each, ast.Constant) and isinstance(each.value, str) and id(each) not in prose
    ]
    return {found for text in strings for found in re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)}


def test_a_corpus_that_cannot_be_had_is_not_asked_for_by_an_option(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPARING_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SPARING_DATA", raising=False)
    with pytest.raises(UserError, match="give a copy with the variable SPARING_DATA"):
        sparing.evaluate(data="text8-prefix")


def test_a_model_without_a_folder_scores_texts_only(lm: sparing.LM) -> None:
    alone = sparing.LM(lm.model, lm.vocab, lm.config, lm.hardware)
    assert sparing.evaluate(alone, text="abc").size_bytes == 3
    with pytest.raises(UserError, match="no run folder"):
        sparing.evaluate(alone)
