"""`sparing data` from the command line."""

import gzip
import hashlib
import json
import resource
import shutil
import subprocess
import sys
from itertools import repeat
from pathlib import Path

import pytest
from tests.cli.conftest import Sparing, settings

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


def test_the_largest_text_can_be_chosen(tmp_path: Path, sparing: Sparing, home: Path) -> None:
    (tmp_path / "text.gz").write_bytes(gzip.compress(b"x" * 10_000))
    said = sparing("data", "prepare", tmp_path / "text.gz", "--max-bytes", 9_999)
    assert said.status == 2
    assert "text.gz holds more than 9,999 bytes of text (--max-bytes 9999);" in said.err
    assert list(home.iterdir()) == []
    found = sparing("data", "prepare", tmp_path / "text.gz", "--max-bytes", 10_000, "--json").json()
    assert found["bytes"] == {"train": 9000, "valid": 500, "test": 500}


@pytest.mark.parametrize("name", ["text.jsonl", "text.jsonl.zst", "text.parquet"])
def test_a_model_is_trained_on_a_column_of_records(
    tmp_path: Path, sparing: Sparing, home: Path, name: str
) -> None:
    path, out, lines = tmp_path / name, tmp_path / "run", [f"{n} dogs, {n * n}" for n in range(300)]
    write_records(path, {"body": lines})
    column = settings("data.text_column=body")
    words = ("train", "quickstart", "--data", path, "--out", out, "--quiet", *settings())
    said = sparing(*words)
    assert said.status == 2
    assert "there is no " in said.err
    assert "did you mean" in said.err or "known: body" in said.err
    assert said.err.count("\n") == 1
    assert not out.exists()
    assert not (home / "tokens").exists()
    assert sparing(*words, *column).status == 0
    assert sparing("evaluate", out, "--split", "test").status == 0
    found = sparing("data", "prepare", path, "--text-column", "body", "--json").json()
    assert sum(found["bytes"].values()) == len("\n".join(lines)) + 1


def write_records(path: Path, columns: dict[str, list[str]]) -> None:
    if path.suffix == ".parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pytest.importorskip("pyarrow").table(columns), path)
        return
    rows = zip(*columns.values(), strict=True)
    lines = "\n".join(json.dumps(dict(zip(columns, row, strict=True))) for row in rows).encode()
    packed = path.suffix == ".zst"
    path.write_bytes(pytest.importorskip("zstandard").compress(lines) if packed else lines)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("vocab", "name"),
    [("bytes", "text"), ("symbols", "text.gz"), ("characters", "text"), ("words", "text.gz")],
)
def test_a_text_larger_than_memory_is_prepared(
    tmp_path: Path, home: Path, vocab: str, name: str
) -> None:
    part = b"".join(b"word%d in a line\n" % (number % 1000) for number in range(10_000))
    path = tmp_path / name
    with gzip.open(path, "wb", 1) if path.suffix else open(path, "wb") as file:
        file.writelines(repeat(part, 1_500_000_000 // len(part)))
    limit = 1_400_000_000
    said = subprocess.run(
        [sys.executable, "-m", "sparing", "data", "prepare", path, "--vocab", vocab],
        # Half of it is for Python's and torch's libraries.
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (said.returncode, said.stderr) == (0, "")
    shutil.rmtree(home)
