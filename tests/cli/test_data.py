"""`sparing data` from the command line."""

import hashlib
import shutil
from pathlib import Path

import pytest
from tests.cli.conftest import Sparing

from sparing.data.corpora import CORPORA, Corpus


def test_cutoffs_of_a_text_file(corpus: Path, sparing: Sparing) -> None:
    words = ("data", "cutoffs", corpus, "--clusters", 2, "--dim", 16, "--align", 4)
    found = sparing(*words, "--json").json()
    assert len(found["cutoffs"]) == 2
    assert [(cut + 2) % 4 for cut in found["cutoffs"]] == [0, 0]
    assert found["head"]["words"] == found["cutoffs"][0]
    shares = [found[part]["share_of_tokens"] for part in ("head", "cluster 1", "cluster 2")]
    assert abs(sum(shares) - 1) < 1e-9
    assert shares[0] > 0.5
    assert 0 < found["of_plain"] < 1
    said = sparing(*words).out
    assert said.startswith(f"cutoffs        {','.join(map(str, found['cutoffs']))}\n")


def test_impossible_cutoffs_are_refused(corpus: Path, sparing: Sparing) -> None:
    said = sparing("data", "cutoffs", corpus, "--vocab", "bytes", "--head", 250)
    assert said.status == 2
    assert "256 words cannot be cut 3 times with at least 250 in the head" in said.err


def test_an_ignored_local_copy_is_reported(
    corpus: Path, sparing: Sparing, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"text": f"sha256:{hashlib.sha256(corpus.read_bytes()).hexdigest()}"}
    foxes = Corpus(name="foxes", description="", local_names=("text.txt",), checksums=known)
    monkeypatch.setitem(CORPORA, "foxes", foxes)
    words = ("data", "prepare", "foxes", "--json", "--from", corpus)
    first = sparing(*words)
    assert (first.status, first.err) == (0, "")
    folder = Path(first.json()["folder"])
    corpus.write_text("another text")
    again = sparing(*words)
    assert again.status == 0
    assert again.err.count("\n") == 1
    for said in (
        f"already tokenized in {folder}",
        f"--from {corpus} is not read",
        "remove that folder",
    ):
        assert said in again.err
    shutil.rmtree(folder)
    assert sparing(*words).status == 2
