"""Trainings of a comparison, and what they left."""

import json
import math
from pathlib import Path

import pytest

from sparing.data.vocab import ByteVocab
from sparing.errors import UserError
from sparing.experiments.trial import FINISHED, Record, Trial, origins
from sparing.experiments.variants import Variant
from sparing.runs.folder import create
from sparing.runs.recipes import recipe

BASE = recipe("quickstart")
VALID = {
    "kind": "valid",
    "step": 4,
    "bits_per_byte": 1.5,
    "bytes": 9,
    "nats_per_token": math.log(2),
}


def trial(tmp_path: Path, seed: int = 0) -> Trial:
    """A finished training without results.json."""
    path = tmp_path / f"recipe-seed{seed + 1}"
    resumed = [{"commit": "b", "device": "slate"}] if seed else []
    about = {"commit": "a" if seed else None, "device": "abacus", "resumed": resumed}
    create(path, BASE, ByteVocab(), about).metrics.write_text(json.dumps(VALID) + "\n")
    return Trial(Variant("recipe", BASE), seed, path)


def test_every_process_that_trained_is_an_origin(tmp_path: Path) -> None:
    trials = [trial(tmp_path, seed) for seed in range(3)]
    trials.append(Trial(trials[0].variant, 3, tmp_path / "nothing yet"))
    told = {"commits": ["unknown", "a", "b"], "devices": ["abacus", "slate"]}
    assert origins(trials) == told
    assert origins([]) == {"commits": [], "devices": []}


def test_the_first_start_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "compare.json"
    assert Record.read(path).ended == {}
    path.write_text(json.dumps({"runs": {"a": FINISHED}, "started_at": "long ago"}))
    record = Record.read(path)
    assert (record.ended, record.started_at) == ({"a": FINISHED}, "long ago")
    path.write_text(json.dumps({"runs": {}}))
    with pytest.raises(UserError, match="no comparison of ours"):
        Record.read(path)


def test_a_finished_training_without_a_figure_is_told(tmp_path: Path) -> None:
    one = trial(tmp_path)
    record = Record({one.path.name: FINISHED})
    (one.path / "results.json").write_text('{"training": null}')
    found = record.figures(one)
    assert found is not None
    assert found.judged is not None
    assert found.judged.bits_per_byte == 1.5
    (one.path / "metrics.jsonl").write_text("")
    assert record.figures(one) is found
    with pytest.raises(UserError, match=r"has no valid entry; remove it"):
        Record({one.path.name: FINISHED}).figures(one)


def test_a_training_that_begins_anew_has_no_figures(tmp_path: Path) -> None:
    one = trial(tmp_path)
    record = Record({one.path.name: FINISHED})
    assert record.figures(one) is not None
    record.forget(one)
    assert record.figures(one) is None
    record.ended[one.path.name] = "failed: too hot"
    assert (record.failure(one), record.status([one])) == ("failed: too hot", "failed")
