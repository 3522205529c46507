"""Records of runs: what older versions wrote stays readable, what is garbled is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from sparing.data.corpora import SPLITS
from sparing.errors import UserError
from sparing.runs import bundled
from sparing.runs.folder import RunFolder
from sparing.runs.records import read_provenance, read_results, read_texts
from sparing.runs.results import device_of, read_split_results
from sparing.runs.table import runs_below

PUBLISHED = Path(__file__).parents[2] / "results"


def test_everything_that_older_versions_published_can_be_read() -> None:
    runs = runs_below(PUBLISHED)
    assert len(runs) > 50
    for run in [*runs, bundled.HOME]:
        read_split_results(RunFolder(run))
        assert device_of(RunFolder(run))
        texts = read_texts(run)
        assert texts is None or set(texts) == set(SPLITS)


@pytest.mark.parametrize(
    ("name", "stored", "words"),
    [
        ("provenance", {"resumed": 3}, "resumed must be a list, not 3"),
        ("provenance", {"resumed": [{"launch": 3}]}, "resumed.launch must be text, not 3"),
        ("results", {"valid": {"step": -1}}, "valid.step must be a whole number of at least 0"),
        ("results", {"valid": {"bytes": "5"}}, "valid.bytes must be a whole number"),
        ("results", [], "its content must be a group of named values"),
        ("data", {"text_sha256": {"valid": None}}, "text_sha256.valid must be text, not None"),
        ("data", {}, "text_sha256 is missing"),
    ],
)
def test_a_garbled_record_is_named(name: str, stored: Any, words: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps(stored))
    read = {"provenance": read_provenance, "results": read_results, "data": read_texts}[name]
    with pytest.raises(UserError, match=f"{path} is damaged: {words}"):
        read(tmp_path)


def test_fields_of_a_newer_version_are_kept(tmp_path: Path) -> None:
    stored = {"commit": "abc", "machine": {"cores": 3}}
    (tmp_path / "provenance.json").write_text(json.dumps(stored))
    assert read_provenance(tmp_path) == stored
