"""Trials, and the record of how they ended."""

import json
import math
from pathlib import Path

import pytest

from sparing.data.vocab import ByteVocab
from sparing.errors import UserError
from sparing.experiments.trial import FINISHED, Trial, TrialRecord, origins
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
    expected = {"commits": ["unknown", "a", "b"], "devices": ["abacus", "slate"]}
    assert origins(trials) == expected
    assert origins([]) == {"commits": [], "devices": []}


def test_the_first_start_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "compare.json"
    assert TrialRecord.read(path).status == {}
    path.write_text(json.dumps({"trials": {"a": FINISHED}, "started_at": "long ago"}))
    record = TrialRecord.read(path)
    assert (record.status, record.started_at) == ({"a": FINISHED}, "long ago")
    path.write_text(json.dumps({"trials": {}}))
    with pytest.raises(UserError, match="started_at is missing; change --out"):
        TrialRecord.read(path)


def test_a_finished_trial_without_a_validation_is_reported(tmp_path: Path) -> None:
    one = trial(tmp_path)
    record = TrialRecord({one.path.name: FINISHED})
    (one.path / "results.json").write_text('{"training": null}')
    found = record.summary(one)
    assert found is not None
    assert found.last_validation is not None
    assert found.last_validation.bits_per_byte == 1.5
    (one.path / "metrics.jsonl").write_text("")
    assert record.summary(one) is found
    with pytest.raises(UserError, match=r"has no valid entry; remove it"):
        TrialRecord({one.path.name: FINISHED}).summary(one)


def test_a_trial_that_is_repeated_has_no_summary(tmp_path: Path) -> None:
    one = trial(tmp_path)
    record = TrialRecord({one.path.name: FINISHED})
    assert record.summary(one) is not None
    record.forget(one)
    assert record.summary(one) is None
    record.status[one.path.name] = "failed: too hot"
    assert (record.failure(one), record.overall_status([one])) == ("failed: too hot", "failed")
