"""Resuming a run that was killed."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.runs.conftest import Killed, contents, killed, resume, start_and_kill, start_words

from sparing.cli.main import main
from sparing.runs.folder import RunFolder
from sparing.training import checkpoint, journal
from sparing.training.background import BackgroundWriter
from sparing.training.checkpoint import Checkpoint


@pytest.mark.parametrize("moment", ["train.fit", "resume.journal.rewind"])
@pytest.mark.parametrize("more", [(), ("--set", "optim.lr=1e-4")])
def test_a_checkpoint_not_chosen_does_not_come_back_after_a_kill(
    moment: str, more: tuple[str, ...], killed_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(f"sparing.runs.{moment}", killed)
        with pytest.raises(Killed):
            resume(killed_run, "--checkpoint", "previous", *more)
    assert RunFolder(killed_run).step("last") == 4
    # The same command again means the same weights.
    assert RunFolder(killed_run).step("previous") == 4
    assert resume(killed_run) == 0


def test_a_run_killed_before_its_first_last_starts_again(
    early_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("sparing.runs.train.fit", killed)
        with pytest.raises(Killed):
            resume(early_run)
    # Nothing is lost before there is something better.
    assert checkpoint.list_names(early_run / "checkpoints") == ["best"]
    assert (early_run / "metrics.jsonl").read_text() == ""
    assert resume(early_run) == 0
    steps = [entry["step"] for entry in journal.read(early_run / "metrics.jsonl")]
    assert steps == sorted(steps)
    assert RunFolder(early_run).step("last") == 8
    assert [each["step"] for each in RunFolder(early_run).starts()[1:]] == [0, 0]


def test_a_run_whose_first_last_does_not_fit_on_the_disk_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "model.safetensors")

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "_write", full)
        # As if the disk took as long to fill up as training takes to the next checkpoint.
        patched.setattr(BackgroundWriter, "check", lambda self: None)
        out, start = start_words(tmp_path, monkeypatch, "train.steps=12", "train.log_every=1")
        assert main(start) == 2
    assert f"to continue: sparing train --resume --out {out}" in capsys.readouterr().err
    assert resume(out) == 0
    assert RunFolder(out).step("last") == 8


def test_starting_again_with_other_settings_drops_the_weights_of_those_before(
    early_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparing.runs.train.fit", killed)
    with pytest.raises(Killed):
        resume(early_run, "--set", "optim.lr=1e-4")
    assert checkpoint.list_names(early_run / "checkpoints") == []


def test_a_run_that_has_lost_its_last_does_not_start_again(
    early_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open(early_run / "metrics.jsonl", "a") as file:
        file.write('{"kind": "event", "step": 5, "what": "a step after the first checkpoint"}\n')
    before = contents(early_run)
    assert resume(early_run) == 2
    assert "available checkpoints: best" in capsys.readouterr().err
    assert contents(early_run) == before
    assert resume(early_run, "--checkpoint", "best") == 0


def test_a_run_that_has_lost_all_its_checkpoints_keeps_its_journal(killed_run: Path) -> None:
    assert resume(killed_run) == 0
    (killed_run / "results.json").unlink()
    shutil.rmtree(killed_run / "checkpoints")
    before = contents(killed_run)
    assert resume(killed_run) == 2
    assert contents(killed_run) == before


def test_a_finished_run_takes_no_settings_that_nothing_is_trained_with(
    killed_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert resume(killed_run) == 0
    before = contents(killed_run)
    assert resume(killed_run, "--set", "train.seed=3") == 2
    assert "budget is used up" in capsys.readouterr().err
    assert contents(killed_run) == before


def test_figures_of_weights_that_would_be_replaced_keep_the_settings(
    early_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(early_run)]) == 0
    before = contents(early_run)
    assert resume(early_run, "--set", "optim.lr=1e-4") == 2
    assert "has results of other settings" in capsys.readouterr().err
    assert contents(early_run) == before


def flip_line(path: Path) -> None:
    first, *rest = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (path / "metrics.jsonl").write_text("".join([first[:9] + "\x00" + first[10:], *rest]))


def cut_off(path: Path) -> None:
    content = (path / "metrics.jsonl").read_bytes()
    (path / "metrics.jsonl").write_bytes(content[:-40])


def replace_with(name: str, content: str) -> Callable[[Path], object]:
    return lambda path: (path / name).write_text(content)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (replace_with("provenance.json", "{"), "provenance.json"),
        (replace_with("provenance.json", '{"resumed": [3]}'), "provenance.json"),
        (replace_with("results.json", "[]"), "results.json"),
        (replace_with("vocab.json", "{}"), "vocab.json"),
        (replace_with("checkpoints/best/manifest.json", "{}"), "manifest.json"),
        (lambda path: (path / "metrics.jsonl").unlink(), "metrics.jsonl"),
        (lambda path: (path / "provenance.json").unlink(), "provenance.json"),
        (lambda path: (path / "data.json").unlink(), "data.json"),
        (flip_line, "metrics.jsonl"),
    ],
)
def test_a_refused_resume_changes_nothing(
    damage: Callable[[Path], object],
    named: str,
    killed_run: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert resume(killed_run) == 0
    damage(killed_run)
    before = contents(killed_run)
    capsys.readouterr()
    for _ in range(2):
        more = ("--checkpoint", "best", "--set", "optim.lr=1e-3", "--set", "train.steps=10")
        assert resume(killed_run, *more) == 2
        said = capsys.readouterr().err
        assert named in said
        assert said.count("\n") == 1
    assert contents(killed_run) == before


@pytest.mark.parametrize("damage", [flip_line, cut_off])
def test_a_damaged_journal_is_continued_without_its_unreadable_lines(
    damage: Callable[[Path], object],
    killed_run: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = ("--set", "train.log_every=1")
    assert resume(killed_run, *words) == 0
    lines = (killed_run / "metrics.jsonl").read_text().splitlines()
    damage(killed_run)
    assert resume(killed_run, "--set", "train.steps=9") == 2
    assert "without those entries with `--cut-journal`" in capsys.readouterr().err
    for moment in ("resume.checkpoint.save", "resume.provenance", "train.fit"):
        with monkeypatch.context() as patched:
            patched.setattr(f"sparing.runs.{moment}", killed)
            with pytest.raises(Killed):
                resume(killed_run, "--set", "train.steps=9", "--cut-journal")
    # From now on it is an ordinary run, whose last checkpoint and journal agree.
    assert resume(killed_run, "--set", "train.steps=9") == 0
    kept = lines[1:] if damage is flip_line else lines[:-1]
    assert (killed_run / "metrics.jsonl").read_text().splitlines()[: len(kept)] == kept
    assert [json.loads(line)["step"] for line in kept][-1] <= 8
    assert RunFolder(killed_run).read("provenance")["resumed"][-2]["step"] == 8
    assert "journal_bytes_cut" not in RunFolder(killed_run).starts()[-1]
    # `previous` is of an earlier step; the repair did not push it out.
    assert RunFolder(killed_run).step("previous") == 8


def test_a_run_that_has_lost_its_settings_is_not_mixed_with_a_new_one(
    killed_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (killed_run / "config.json").unlink()
    before = contents(killed_run)
    corpus = str(killed_run.parent / "text.txt")
    assert main(["train", "quickstart", "--data", corpus, "--out", str(killed_run)]) == 2
    assert "of a run that has lost its config.json" in capsys.readouterr().err
    assert contents(killed_run) == before


def test_weights_that_are_not_finite_are_refused_but_can_be_looked_at(
    killed_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(killed_run)
    identity = folder.config().identity()
    saved = checkpoint.load(folder.checkpoints, "last", identity)
    next(iter(saved.tensors["model"].values())).view(-1)[0] = torch.nan
    checkpoint.save(folder.checkpoints, "last", saved, identity)
    before, run = contents(killed_run), str(killed_run)
    for command in (
        ["evaluate", run],
        ["generate", run, "--length", "9"],
        ["score", run, "--text", "green"],
        ["train", "--resume", "--out", run],
    ):
        assert main(command) == 2
        said = capsys.readouterr().err
        assert "is not finite, so the run has diverged" in said
        assert said.count("\n") == 1
    assert main(["info", run]) == 0
    assert contents(killed_run) == before
    assert resume(killed_run, "--checkpoint", "previous") == 0


def test_losses_of_another_text_are_not_compared_with_the_best(killed_run: Path) -> None:
    assert resume(killed_run) == 0
    folder = RunFolder(killed_run)
    first = folder.read("results")["best_valid"]
    # A loss that none of these weights can reach.
    saved = checkpoint.load(folder.checkpoints, "last", folder.config().identity())
    luck = Checkpoint(saved.tensors, {**saved.cursor, "best_nats": 0.01})
    checkpoint.save(folder.checkpoints, "last", luck, folder.config().identity())
    more = ("--set", "train.steps=9", "--set", "train.evaluate_bytes=300")
    assert resume(killed_run, *more) == 0
    best = folder.read("results")["best_valid"]
    assert (first["bytes"], best["bytes"]) == (200, 300)
    assert best["step"] == folder.step("best") == 9


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        (("last", "previous"), "available checkpoints: best"),
        (("last", "previous", "best"), "has results but no checkpoint"),
    ],
)
def test_a_run_with_results_but_no_weights_does_not_start_again(
    lost: tuple[str, ...], words: str, killed_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert resume(killed_run) == 0
    for name in lost:
        shutil.rmtree(killed_run / "checkpoints" / name)
    before = contents(killed_run)
    assert resume(killed_run) == 2
    assert words in capsys.readouterr().err
    assert contents(killed_run) == before


def test_resuming_a_finished_run_changes_nothing(
    killed_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert resume(killed_run) == 0
    results, config = ((killed_run / f"{n}.json").read_text() for n in ("results", "config"))
    assert resume(killed_run) == 0
    assert resume(killed_run, "--set", "train.steps=5") == 2
    assert "budget is used up: 8 steps" in capsys.readouterr().err
    assert (killed_run / "results.json").read_text() == results
    assert (killed_run / "config.json").read_text() == config


@pytest.mark.parametrize(
    ("ordered", "changed"),
    [
        ("train.shuffle_chunk=24", "train.seed=3"),
        ("train.shuffle_chunk=24", "train.shuffle_chunk=48"),
        ("train.shuffle_chunk=24", "train.shuffle_chunk=none"),
        ("train.shuffle_chunk=24", "train.segment=6"),
        ("train.shuffle_chunk=none", "train.shuffle_chunk=24"),
    ],
)
def test_the_order_of_an_epoch_under_way_stays(
    ordered: str,
    changed: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = start_and_kill(tmp_path, monkeypatch, "sparing.runs.callbacks._validate", ordered)
    before = contents(out)
    assert resume(out, "--set", changed) == 2
    said = capsys.readouterr().err
    name, _, value = changed.partition("=")
    assert said.startswith(f"sparing: {name} cannot become {value} in the middle of")
    assert said.count("\n") == 1
    assert contents(out) == before
    # A second pass begins with an epoch of its own.
    assert resume(out, "--set", changed, "--set", "optim.lr=1e-3") == 0


def test_a_run_killed_before_it_validated_its_last_weights_can_be_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    moment, bare = "sparing.runs.callbacks._validate", "train.keep_state=false"
    out = start_and_kill(tmp_path, monkeypatch, moment, bare)
    same = ("--set", "train.steps=6")
    assert resume(out, *same) == 0
    found = RunFolder(out)
    assert found.results()["training"]["steps"] == found.results()["best_valid"]["step"] == 6
    assert found.step("best") == found.step("last") == 6
    # The state at its end is lost, so more steps are a second pass.
    before = contents(out / "checkpoints")
    assert resume(out, *same) == 0
    assert contents(out / "checkpoints") == before
    assert resume(out) == 0
    assert (
        checkpoint.load(found.checkpoints, "last", found.config().identity()).cursor["pass_step"]
        == 6
    )
