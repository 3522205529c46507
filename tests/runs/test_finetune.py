"""A run that starts from the weights and the vocabulary of another one."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.cli.conftest import settings
from tests.runs.conftest import Killed, killed

from sparing.cli.main import main
from sparing.device import Hardware
from sparing.errors import UserError
from sparing.runs.build import build_model
from sparing.runs.finetune import (
    BUNDLED,
    Init,
    adapt_to_init,
    finetune_recipe,
    load_init,
    open_init,
)
from sparing.runs.folder import RunFolder, load_model
from sparing.runs.recipes import recipe
from sparing.training import checkpoint
from sparing.training.capture import model_tensors
from sparing.training.checkpoint import Checkpoint

CPU = Hardware(torch.device("cpu"), "float32")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARING_HOME", str(tmp_path / "home"))


@pytest.fixture
def texts(tmp_path: Path) -> tuple[Path, Path]:
    first, second = tmp_path / "first.txt", tmp_path / "second.txt"
    first.write_text("".join(f"{n} green bottles, {n * n} walls\n" for n in range(300)))
    second.write_text("".join(f"{n * n} walls, {n} bottles green\n" for n in range(300)))
    return first, second


def train(*words: object) -> int:
    return main(["train", "--quiet", *map(str, words)])


@pytest.fixture(params=["bytes", "characters", "words"])
def source(request: pytest.FixtureRequest, texts: tuple[Path, Path], tmp_path: Path) -> Path:
    out = tmp_path / "source"
    vocab = settings(f"data.vocab={request.param}")
    assert train("quickstart", "--data", texts[0], "--out", out, *vocab) == 0
    return out


def tuned(source: Path, text: Path, out: Path, *more: object) -> int:
    kind = json.loads((source / "vocab.json").read_text())["kind"]
    given = settings(f"data.vocab={kind}")
    return train("quickstart", "--init", source, "--data", text, "--out", out, *given, *more)


def test_a_run_starts_from_the_weights_of_another(
    source: Path, texts: tuple[Path, Path], tmp_path: Path
) -> None:
    out = tmp_path / "tuned"
    # Nothing is learned, so that the weights are seen as they were at the start.
    assert tuned(source, texts[1], out, "--set", "optim.lr=0", "--set", "optim.name=sgd") == 0
    ours, theirs = (model_tensors(load_model(RunFolder(each), CPU)) for each in (out, source))
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=0, atol=0)
    assert RunFolder(out).read("vocab") == RunFolder(source).read("vocab")
    weights = (source / "checkpoints" / "best" / "model.safetensors").read_bytes()
    assert RunFolder(out).read("provenance")["init"] == {
        "run": str(source.resolve()),
        "checkpoint": "best",
        "step": 12,
        "sha256": hashlib.sha256(weights).hexdigest(),
        "recipe": "quickstart",
        "corpus": str(texts[0].resolve()),
        "provenance": RunFolder(source).read("provenance"),
        "results": RunFolder(source).results(),
    }


def test_what_is_known_of_a_tuned_run_includes_how_its_first_weights_were_trained(
    texts: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    assert train("quickstart", "--data", texts[0], "--out", first, *settings()) == 0
    for source, out in (first, second), (second, third):
        more = ["--set", "train.steps=3"]
        assert tuned(source, texts[1], out, *more) == 0
    capsys.readouterr()
    assert main(["info", str(third)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f" trained quickstart on {texts[1].resolve()}, 3 steps" in shown
    assert f" init trained quickstart on {texts[1].resolve()}, 3 steps" in shown
    assert f" init 2 trained quickstart on {texts[0].resolve()}, 12 steps" in shown
    assert " init 2 seed 1111 " in shown


def test_the_checksum_is_that_of_the_weights_even_if_they_are_replaced_meanwhile(
    texts: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "source"
    assert train("quickstart", "--data", texts[0], "--out", out, *settings()) == 0
    folder, replaced = RunFolder(out), []
    identity = folder.config().identity()
    load = checkpoint.load

    def replacing(*given: Any) -> Checkpoint:
        found = load(*given)
        if not replaced:
            replaced.append(found)
            model = {name: torch.zeros_like(each) for name, each in found.tensors["model"].items()}
            other = Checkpoint({"model": model}, {**found.cursor, "step": 13})
            checkpoint.save(folder.checkpoints, "best", other, identity)
        return found

    monkeypatch.setattr(checkpoint, "load", replacing)
    init = open_init(str(out))
    weights = (out / "checkpoints" / "best" / "model.safetensors").read_bytes()
    assert (init.step, init.sha256) == (13, hashlib.sha256(weights).hexdigest())
    assert all(not each.any() for each in init.weights.values())


def test_a_tuned_run_resumes_and_evaluates_without_the_other(
    source: Path, texts: tuple[Path, Path], tmp_path: Path
) -> None:
    out = tmp_path / "tuned"
    assert tuned(source, texts[1], out) == 0
    source.rename(tmp_path / "moved")
    assert train("--resume", "--out", out, "--set", "train.steps=14") == 0
    assert RunFolder(out).step("last") == 14
    assert main(["evaluate", str(out)]) == 0


def test_a_run_killed_before_its_first_step_resumes_from_the_weights(
    texts: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, out = tmp_path / "source", tmp_path / "tuned"
    assert train("quickstart", "--data", texts[0], "--out", first, *settings()) == 0

    with monkeypatch.context() as patched:
        patched.setattr("sparing.runs.train.fit", killed)
        with pytest.raises(Killed):
            tuned(first, texts[1], out)
    stored = load_file(out / "checkpoints" / "last" / "model.safetensors")
    given = load_file(first / "checkpoints" / "best" / "model.safetensors")
    assert all(torch.equal(stored[name], given[name]) for name in given)
    assert RunFolder(out).step("last") == 0
    assert train("--resume", "--out", out) == 0
    assert RunFolder(out).step("last") == 12


@pytest.mark.parametrize("moment", ["train.checkpoint.save", "folder.run_config.to_json"])
def test_a_run_killed_before_it_stored_the_weights_is_started_by_the_same_command(
    moment: str, texts: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, out = tmp_path / "source", tmp_path / "tuned"
    assert train("quickstart", "--data", texts[0], "--out", first, *settings()) == 0
    with monkeypatch.context() as patched:
        patched.setattr(f"sparing.runs.{moment}", killed)
        with pytest.raises(Killed):
            tuned(first, texts[1], out)
    assert train("--resume", "--out", out) == 2
    assert tuned(first, texts[1], out) == 0
    assert [RunFolder(out).step(name) for name in ("last", "previous")] == [12, 0]


def test_without_a_recipe_the_model_is_that_of_the_run(
    texts: tuple[Path, Path], tmp_path: Path
) -> None:
    first, out = tmp_path / "source", tmp_path / "tuned"
    assert train("quickstart", "--data", texts[0], "--out", first, *settings()) == 0
    steps = ["--set", "train.steps=2", "--set", "train.segment=16"]
    assert train("--init", first, "--data", texts[1], "--out", out, *steps) == 0
    config = RunFolder(out).config()
    assert config.model == RunFolder(first).config().model
    assert config.optim == recipe("finetune_small").optim


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["quickstart", "--set", "model.dim=32"], "do not fit this model (model.dim: 16 -> 32)"),
        (["quickstart", "--set", "data.vocab=words"], "set data.vocab=bytes"),
        (["quickstart", "--set", "data.vocab_size=999"], "set data.vocab_size=none"),
        (["enwik8_small"], "is a sha_rnn, and recipe enwik8_small a stack"),
        (["quickstart", "--resume"], "leave one of them out"),
        (["quickstart", "--checkpoint", "previous"], "there is no checkpoint"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(
    words: list[str],
    complaint: str,
    texts: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, out = tmp_path / "source", tmp_path / "tuned"
    assert train("quickstart", "--data", texts[0], "--out", first, *settings()) == 0
    capsys.readouterr()
    name, *more = words
    tiny = settings() if name == "quickstart" else []
    assert train(name, "--init", first, "--data", texts[1], "--out", out, *tiny, *more) == 2
    printed = capsys.readouterr().err
    assert complaint in printed
    assert printed.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize(
    ("file", "complaint"),
    [
        ("config.json", "config.json"),
        ("vocab.json", "vocab.json"),
        ("checkpoints/best/model.safetensors", "checkpoint"),
        ("checkpoints/best/cursor.json", "cursor.json"),
    ],
)
@pytest.mark.parametrize("cut", [True, False], ids=["cut", "missing"])
def test_a_damaged_run_is_refused_in_one_line(
    file: str,
    complaint: str,
    cut: bool,
    texts: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, out = tmp_path / "source", tmp_path / "tuned"
    assert train("quickstart", "--data", texts[0], "--out", first, *settings()) == 0
    capsys.readouterr()
    damaged = first / file
    content = damaged.read_bytes()
    damaged.unlink()
    if cut:
        damaged.write_bytes(content[: len(content) // 2])
    assert tuned_bytes(first, texts[1], out) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert complaint in printed
    assert not out.exists()


def tuned_bytes(source: Path, text: Path, out: Path) -> int:
    return train("quickstart", "--init", source, "--data", text, "--out", out, *settings())


def test_the_newlines_are_those_of_the_new_run(texts: tuple[Path, Path], tmp_path: Path) -> None:
    first, out = tmp_path / "source", tmp_path / "tuned"
    assert train("quickstart", "--data", texts[0], "--out", first, *settings()) == 0
    assert tuned(first, texts[1], out, "--set", "data.newlines=false") == 0
    assert RunFolder(out).config().data.newlines is False


def test_a_text_with_characters_that_the_run_does_not_know_is_refused(
    texts: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, other, out = tmp_path / "source", tmp_path / "other.txt", tmp_path / "tuned"
    kind = settings("data.vocab=characters")
    assert train("quickstart", "--data", texts[0], "--out", first, *kind) == 0
    other.write_text("Zwölf Flaschen\n" * 300)
    capsys.readouterr()
    assert tuned(first, other, out) == 2
    assert "does not occur in the training text" in capsys.readouterr().err
    assert not out.exists()


def test_without_a_recipe_the_text_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("--init", BUNDLED) == 2
    assert "(`data`)" in capsys.readouterr().err
    assert train("--init", " ") == 2
    assert "`init` is empty" in capsys.readouterr().err
    assert train("--init", "nowhere") == 2
    assert "run nowhere does not exist" in capsys.readouterr().err


@pytest.fixture(scope="module")
def bundled() -> Init:
    return open_init(BUNDLED)


def test_the_package_s_model_loses_the_head_that_the_recipe_does_not_have(bundled: Init) -> None:
    run = adapt_to_init(recipe("finetune_small"), bundled)
    model = build_model(run)
    assert any(name.startswith("mtp.") for name in bundled.weights)
    states = [name for name in bundled.weights if ".init_states." in name]
    assert load_init(model, bundled) == [] != states
    weight = model_tensors(model)["embedding.weight"]
    torch.testing.assert_close(weight, bundled.weights["embedding.weight"].float())


def test_a_head_that_the_checkpoint_lacks_stays_as_drawn(bundled: Init) -> None:
    weights = {name: each for name, each in bundled.weights.items() if name[:4] != "mtp."}
    lean = replace(bundled, weights=weights)
    run = adapt_to_init(finetune_recipe(lean), lean)
    assert run.model.mtp.tokens == 1
    model = build_model(run)
    drawn = {name: each.clone() for name, each in model_tensors(model).items()}
    lacking = load_init(model, lean)
    assert lacking == [name for name in drawn if name.startswith("mtp.")] != []
    own = model_tensors(model)
    assert all(torch.equal(own[name], drawn[name]) for name in lacking)
    incomplete = replace(lean, weights={k: v for k, v in weights.items() if "embedding" not in k})
    with pytest.raises(UserError, match=r"embedding.weight is missing there"):
        adapt_to_init(run, incomplete)


SCANS = ["--set", "model.pattern=gf", "--set", "model.dim=8", "--set", "model.feedforward.dim=8",
         "--set", "model.ngrams.lengths=()", "--set", "train.minutes=none", "--set",
         "train.steps=3", "--set", "train.segment=16", "--set", "train.batch=2", "--set",
         "train.precision=float32", "--set", "train.evaluate_every=0"]  # fmt: skip
LEARNED = ["--set", "model.qrnn.learnable_init_states=true"]


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoints" / "last" / "model.safetensors")


def test_states_at_the_start_of_a_text_are_learned_alone(
    texts: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    data = ["--data", texts[0]]
    assert train("enwik8_20min", *data, "--out", first, *SCANS) == 0
    only = ["--set", "optim.trainable=*.init_states.*,", "--set", "train.state_reset=1"]
    tuning = [*SCANS, *LEARNED, *only]
    assert train("enwik8_20min", "--init", first, *data, "--out", second, *tuning) == 0
    before, after = weights(first), weights(second)
    assert after.keys() - before.keys() == {
        "blocks.0.init_states.cell", "blocks.0.init_states.input"
    }  # fmt: skip
    assert all(after[name].any() for name in after.keys() - before.keys())
    assert all(torch.equal(before[name], after[name]) for name in before)
    # A network that was never trained is not frozen.
    capsys.readouterr()
    assert train("enwik8_20min", *data, "--out", third, *SCANS, *LEARNED, *only) == 2
    assert "it needs `init`" in capsys.readouterr().err
    # What has been learned is not lost without a word.
    capsys.readouterr()
    assert train("enwik8_20min", "--init", second, *data, "--out", third, *SCANS) == 2
    assert "model.qrnn.learnable_init_states: true -> false" in capsys.readouterr().err
    assert not third.exists()
