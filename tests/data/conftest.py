"""A cache of its own for every test, and the shared corpora where there are any."""

import os
from pathlib import Path

import pytest

from sparing.data.splits import read_splits

REPOSITORY = Path(__file__).parents[2]
SHARED = Path(os.environ.get("SPARING_DATA") or REPOSITORY.parent / "shared" / "data")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty `$SPARING_HOME`, and no `$SPARING_DATA`."""
    home = tmp_path / "sparing-home"
    monkeypatch.setenv("SPARING_HOME", str(home))
    monkeypatch.delenv("SPARING_DATA", raising=False)
    return home


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with enwik8.xz and its like."""
    if not (SHARED / "enwik8.xz").exists():
        pytest.skip("needs enwik8.xz and wikitext-2.tar.xz: set SPARING_DATA to their folder")
    return SHARED


@pytest.fixture(scope="session")
def enwik8(shared_data: Path) -> dict[str, bytes]:
    """Its three splits, unpacked and verified once."""
    return read_splits("enwik8", shared_data / "enwik8.xz")
