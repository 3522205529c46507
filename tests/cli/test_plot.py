"""`sparing plot` on tiny run folders."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner, Result

from sparing.cli.plot import plot
from sparing.data.tokens import DataConfig
from sparing.data.vocab import ByteVocab
from sparing.errors import UserError
from sparing.models.adaptive_span.config import AdaptiveSpanConfig
from sparing.models.sha_rnn.config import SHARNNConfig
from sparing.runs.build import build_model
from sparing.runs.config import RunConfig
from sparing.runs.folder import create
from sparing.training import checkpoint
from sparing.training.capture import model_tensors
from sparing.training.checkpoint import Checkpoint
from sparing.training.config import TrainConfig

MakeRun = Callable[..., Path]
PNG = b"\x89PNG\r\n\x1a\n"
TEXT = "".join(f"line {number} of a text to read\n" for number in range(120))


@pytest.fixture
def make_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeRun:
    """A run folder with a journal and a random model, trained on a file of its own."""
    monkeypatch.setenv("SPARING_HOME", str(tmp_path / "home"))
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(TEXT)

    def make(name: str = "run", **model: Any) -> Path:
        base = {"vocab_size": 256, "dim": 8, "depth": 2, "boom_dim": 8, "attention_at": (1,)}
        run = RunConfig(
            recipe="own",
            family="sha_rnn",
            model=SHARNNConfig(**(base | {"memory": 32} | model)),
            data=DataConfig(corpus=str(corpus)),
            train=TrainConfig(steps=2),
        )
        # As if from elsewhere: there is no record of the text.
        about = {"commit": "c0ffee", "imported": "model.pt"}
        folder = create(tmp_path / name, run, ByteVocab(), about)
        torch.manual_seed(0)
        saved = Checkpoint({"model": model_tensors(build_model(run))}, {"step": 2})
        checkpoint.save(folder.checkpoints, "best", saved, run.identity())
        loss = {"bits_per_byte": 2.0, "nats_per_token": 2 * math.log(2)}
        entries = [
            {"kind": "train", "step": step, "tokens": step, "elapsed_s": 60.0, **loss}
            for step in (1, 2)
        ]
        lines = "".join(json.dumps(entry) + "\n" for entry in entries)
        folder.metrics.write_text(lines)
        return folder.path

    return make


def sparing_plot(*words: object) -> Result:
    app = typer.Typer()
    app.command()(plot)
    return CliRunner().invoke(app, [str(word) for word in words])


def refusal(*words: object) -> str:
    result = sparing_plot(*words)
    assert isinstance(result.exception, UserError), result.output
    return str(result.exception)


def test_curves_of_one_run_go_into_its_folder(make_run: MakeRun) -> None:
    run = make_run()
    result = sparing_plot(run, "--x", "bytes", "--line", "1.076:SHA-RNN paper")
    assert result.exception is None
    assert result.output.split() == [str(run / "plots" / "curves.png")]
    assert (run / "plots" / "curves.png").read_bytes().startswith(PNG)


def test_several_runs_go_into_the_given_file(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run("a"), make_run("b")]
    out = tmp_path / "both.png"
    result = sparing_plot(*runs, "--out", out, "--svg", "--json")
    assert result.exception is None
    assert json.loads(result.stdout) == {"files": [str(out), str(out.with_suffix(".svg"))]}
    assert out.read_bytes().startswith(PNG)
    assert "needs --out FILE" in refusal(*runs)
    assert "named twice" in refusal(runs[0], runs[0], "--out", out)


def test_focus_draws_attention_and_memory_on_the_valid_split(make_run: MakeRun) -> None:
    run = make_run()
    result = sparing_plot(run, "--what", "focus", "--length", 20, "--device", "cpu")
    assert result.exception is None
    paths = [run / "plots" / name for name in ("focus.png", "memory.png")]
    assert result.stdout.split() == [str(path) for path in paths]
    assert all(path.read_bytes().startswith(PNG) for path in paths)


def test_focus_on_a_given_text(make_run: MakeRun, tmp_path: Path) -> None:
    out = tmp_path / "mine.png"
    words = ("--what", "focus", "--text", "$5 für 中\n", "--out", out, "--json")
    result = sparing_plot(make_run(), *words)
    assert result.exception is None
    assert json.loads(result.stdout) == {"files": [str(out), str(tmp_path / "mine-memory.png")]}


def test_context_curves_of_two_runs_share_a_figure(make_run: MakeRun, tmp_path: Path) -> None:
    out = tmp_path / "context.png"
    runs = [make_run("a"), make_run("b", attention_at=())]
    result = sparing_plot(*runs, "--what", "context", "--length", 12, "--windows", 9, "--out", out)
    assert result.exception is None
    assert result.stdout.split() == [str(out)]
    assert out.read_bytes().startswith(PNG)
    alone = sparing_plot(runs[0], "--what", "context", "--json")
    files = json.loads(alone.stdout)["files"]
    assert files == [str(runs[0] / "plots" / "context.png")]


def test_a_race_needs_a_run_on_enwik8_with_results(make_run: MakeRun, tmp_path: Path) -> None:
    run, out = make_run(), tmp_path / "race.png"
    assert "race is for enwik8 only" in refusal(run, "--what", "race")
    config = json.loads((run / "config.json").read_text())
    config["data"]["corpus"] = "enwik8"
    (run / "config.json").write_text(json.dumps(config))
    assert "no valid or test result yet" in refusal(run, "--what", "race")
    test = {"bits_per_byte": 1.05, "bytes": 9, "protocol": "bytes", "how": "", "step": 2}
    (run / "results.json").write_text(json.dumps({"test": test}))
    result = sparing_plot(run, "--what", "race", "--out", out)
    assert result.exception is None
    assert result.output.split() == [str(out)]
    assert out.read_bytes().startswith(PNG)
    assert "--x is for --what" in refusal(run, "--what", "race", "--x", "bytes")


def test_what_cannot_be_drawn_is_refused_in_one_line(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run()
    assert "does not exist" in refusal(tmp_path / "nowhere")
    assert "is not a run folder" in refusal(tmp_path)
    assert "write it as 1.076:label" in refusal(run, "--line", "paper")
    assert "must end in .png or .svg" in refusal(run, "--out", tmp_path / "a.gif")
    assert "one run at a time" in refusal(run, make_run("b"), "--what", "focus")
    assert "no layer of this model can show" in refusal(make_run("c", memory=0), "--what", "focus")
    assert "does not fit" in refusal(run, "--what", "context", "--length", 10**6)
    assert "at least one window" in refusal(run, "--what", "context", "--windows", 0)
    assert "the text is empty" in refusal(run, "--what", "focus", "--text", "")
    (run / "metrics.jsonl").unlink()
    assert "metrics.jsonl is missing; train the run first" in refusal(run)
    assert not (run / "plots").exists()


@pytest.mark.parametrize(
    ("what", "option", "value"),
    [
        ("focus", "--x", "bytes"),
        ("context", "--line", "1"),
        ("curves", "--text", "a"),
        ("context", "--text", "a"),
        ("curves", "--length", "3"),
        ("focus", "--windows", "3"),
        ("curves", "--checkpoint", "best"),
    ],
)
def test_an_option_of_another_figure_is_refused(
    make_run: MakeRun, what: str, option: str, value: str
) -> None:
    assert f"{option} is for --what" in refusal(make_run(), "--what", what, option, value)


def test_unknown_figures_and_axes_are_refused_by_the_parser(make_run: MakeRun) -> None:
    run = make_run()
    for option, value in (("--what", "curve"), ("--x", "hours")):
        result = sparing_plot(run, option, value)
        assert result.exit_code == 2
        assert value in result.output


def test_a_corpus_whose_vocabulary_has_changed_is_refused(make_run: MakeRun) -> None:
    run = make_run()
    (run / "vocab.json").write_text(json.dumps({"kind": "symbols", "symbols": list(range(256))}))
    assert "now has another vocabulary" in refusal(run, "--what", "context")


def spanning(tmp_path: Path, *, journal: bool) -> Path:
    """A run of a family with spans, trained or imported."""
    run = RunConfig(
        recipe="own",
        family="adaptive_span",
        model=AdaptiveSpanConfig(vocab_size=256, dim=8, depth=2, heads=2, ff_dim=8, span_limit=64),
        train=TrainConfig(steps=2),
    )
    folder = create(tmp_path / "spanning", run, ByteVocab(), {"commit": "c0ffee"})
    model = build_model(run)
    saved = Checkpoint({"model": model_tensors(model)}, {"step": 2})
    checkpoint.save(folder.checkpoints, "best", saved, run.identity())
    if journal:
        entries = [{"kind": "train", "step": step, **model.telemetry()} for step in (1, 2)]
        folder.metrics.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return folder.path


@pytest.mark.parametrize("journal", [True, False])
def test_spans_are_drawn_by_layer_and_over_training(tmp_path: Path, journal: bool) -> None:
    run = spanning(tmp_path, journal=journal)
    result = sparing_plot(run, "--what", "spans", "--device", "cpu", "--checkpoint", "best")
    assert result.exception is None
    names = ["spans.png", "spans-training.png"] if journal else ["spans.png"]
    assert result.stdout.split() == [str(run / "plots" / name) for name in names]
    assert all((run / "plots" / name).read_bytes().startswith(PNG) for name in names)


def test_spans_of_a_run_without_weights_come_from_its_journal(tmp_path: Path) -> None:
    run = spanning(tmp_path, journal=True)
    shutil.rmtree(run / "checkpoints")
    assert sparing_plot(run, "--what", "spans").exception is None
    assert (run / "plots" / "spans.png").read_bytes().startswith(PNG)
    assert "no checkpoint" in refusal(run, "--what", "spans", "--checkpoint", "best")


def test_spans_need_an_entry_in_the_journal(tmp_path: Path) -> None:
    run = spanning(tmp_path, journal=False)
    (run / "metrics.jsonl").write_text('{"kind": "valid", "step": 2}\n')
    words = refusal(run, "--what", "spans", "--checkpoint", "best")
    assert "has no spans in its journal yet: train it for at least train.log_every" in words
    assert not (run / "plots").exists()


def test_a_model_without_spans_has_no_figure_of_them(make_run: MakeRun) -> None:
    assert "no learned spans" in refusal(make_run(), "--what", "spans")
    assert "one run at a time" in refusal(make_run("a"), make_run("b"), "--what", "spans")
