"""An empty cache for every test, small corpora, and the shared ones if there are any."""

import hashlib
import io
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from sparing.data.corpora import CORPORA, Corpus
from sparing.data.splits import read_splits

REPOSITORY = Path(__file__).parents[2]
SHARED = Path(os.environ.get("SPARING_DATA") or REPOSITORY.parent / "shared" / "data")
TEXT = b"0123456789" * 10
PARTS = {"train": b"one two\n" * 9, "valid": b"three\n", "test": b"four\n"}


def sha256(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def read_all(name: str, source: Path | None = None) -> dict[str, bytes]:
    """The splits of a corpus, in memory."""
    return {split: bytes(text) for split, text in read_splits(name, source).items()}


def zip_of(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def tar_of(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty `$SPARING_HOME`, and no `$SPARING_DATA`."""
    home = tmp_path / "sparing-home"
    monkeypatch.setenv("SPARING_HOME", str(home))
    monkeypatch.delenv("SPARING_DATA", raising=False)
    return home


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with enwik8.xz and other corpora."""
    if not (SHARED / "enwik8.xz").exists():
        pytest.skip("needs enwik8.xz and wikitext-2.tar.xz: set SPARING_DATA to their folder")
    return SHARED


@pytest.fixture(scope="session")
def enwik8(shared_data: Path) -> dict[str, bytes]:
    """Its three splits, unpacked and verified once."""
    return read_all("enwik8", shared_data / "enwik8.xz")


@pytest.fixture
def digits(monkeypatch: pytest.MonkeyPatch) -> Corpus:
    """One file, cut by offset."""
    corpus = Corpus(
        name="digits", description="", sizes=(80, 10, 10), checksums={"text": sha256(TEXT)}
    )
    monkeypatch.setitem(CORPORA, "digits", corpus)
    return corpus


@pytest.fixture
def wiki(monkeypatch: pytest.MonkeyPatch) -> Corpus:
    """Three files."""
    corpus = Corpus(
        name="wiki",
        description="",
        members=("wiki.{split}.tokens", "{split}.txt"),
        checksums={split: sha256(text) for split, text in PARTS.items()},
    )
    monkeypatch.setitem(CORPORA, "wiki", corpus)
    return corpus
