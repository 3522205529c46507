"""A run that is killed at any change to the disk ends as if it had not been."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.runs.crash import AT_FIT, KILLED, evidence, moments, small_run, trained

from sparing.models import FAMILIES
from sparing.runs.config import RunConfig
from sparing.runs.train import TrainOptions, train
from sparing.training import checkpoint, journal


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home for tokens, and neither git nor TensorBoard, whose files are not ours."""
    monkeypatch.setenv("SPARING_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SPARING_COMMIT", "none")
    monkeypatch.setattr(journal, "_open_tensorboard", lambda *_: None)


def prepared(family: str, folder: Path) -> RunConfig:
    """A run on a small text, trained once here so that the forked processes import nothing."""
    corpus = folder / "text.txt"
    corpus.write_text("".join(f"{n} green bottles, {n * n} walls\n" for n in range(40)))
    run = small_run(family, corpus)
    train(run, folder / "warm", TrainOptions(progress=False, device="cpu"))
    return run


def survive(family: str, folder: Path, every: int) -> int:
    """Kill a run at every `every`-th change and resume it; return how many were killed."""
    run, whole = prepared(family, folder), folder / "whole"
    status, changes = trained(run, whole)
    assert status == 0
    expected, struck = evidence(whole), 0
    for moment in moments(changes, every):
        broken = folder / "broken"
        struck += trained(run, broken, moment)[0] == KILLED
        status, _ = trained(run, broken)
        assert status == 0, f"not resumed after change {moment}"
        check_equal(evidence(broken), expected, f"killed at change {moment}")
        shutil.rmtree(broken)
    assert struck >= changes // every
    return struck


def check_equal(found: dict[str, Any], expected: dict[str, Any], when: str) -> None:
    odd = [key for key in expected if found.get(key) != expected[key]]
    shown = {key: (found.get(key), expected[key]) for key in odd if "safetensors" not in key}
    assert not odd, f"{when}: {odd} {shown}"


def test_a_kill_at_some_changes_to_the_disk_changes_nothing(tmp_path: Path) -> None:
    assert survive("sha_rnn", tmp_path, every=23) > 8


@pytest.mark.soak
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_kill_at_any_change_to_the_disk_changes_nothing(family: str, tmp_path: Path) -> None:
    assert survive(family, tmp_path, every=1) > 200


@pytest.mark.soak
def test_a_kill_of_the_resumed_run_changes_nothing_either(tmp_path: Path) -> None:
    run, whole = prepared("sha_rnn", tmp_path), tmp_path / "whole"
    _, changes = trained(run, whole)
    expected, struck = evidence(whole), 0
    for first in range(31, changes + 1, 31):
        trained(run, tmp_path / "killed", first)
        shutil.copytree(tmp_path / "killed", tmp_path / "counted")
        for second in moments(trained(run, tmp_path / "counted")[1], 3):
            broken = Path(shutil.copytree(tmp_path / "killed", tmp_path / "broken"))
            struck += trained(run, broken, second)[0] == KILLED
            assert trained(run, broken)[0] == 0
            check_equal(evidence(broken), expected, f"killed at changes {first} and {second}")
            shutil.rmtree(broken)
        for name in ("killed", "counted"):
            shutil.rmtree(tmp_path / name)
    assert struck > 100


@pytest.mark.parametrize(
    ("name", "every"),
    [
        pytest.param("best", 7),
        *(pytest.param(name, 1, marks=pytest.mark.soak) for name in checkpoint.NAMES),
    ],
)
def test_a_second_pass_killed_before_it_begins_is_the_same_or_did_not_happen(
    name: str, every: int, tmp_path: Path
) -> None:
    run, start = prepared("sha_rnn", tmp_path), tmp_path / "start"
    assert trained(run, start)[0] == 0
    slower = replace(run, optim=replace(run.optim, lr=1e-3), train=replace(run.train, steps=9))
    whole = Path(shutil.copytree(start, tmp_path / "whole"))
    status, changes = trained(slower, whole, AT_FIT, name)
    assert status == KILLED
    expected = evidence(whole)
    for moment in moments(changes, every):
        broken = Path(shutil.copytree(start, tmp_path / "broken"))
        trained(slower, broken, moment, name)
        plain = Path(shutil.copytree(broken, tmp_path / "plain"))
        assert trained(slower, broken, AT_FIT, name)[0] == KILLED
        check_equal(evidence(broken), expected, f"killed at change {moment}")
        assert trained(None, plain, AT_FIT)[0] == KILLED
        assert settled(plain) in (settled(start), settled(whole)), moment
        for path in (broken, plain):
            shutil.rmtree(path)


def settled(path: Path) -> dict[str, Any]:
    """What a run continues with: settings, and all of `last`."""
    found = evidence(path)
    return {key: found[key] for key in found if key == "config" or "/last/" in key}
