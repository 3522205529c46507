import dataclasses
import lzma
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.data.conftest import PARTS, TEXT, sha256, zip_of

from sparing.data import fetch
from sparing.data import splits as reading
from sparing.data.corpora import CORPORA, SPLITS, Corpus
from sparing.data.splits import fetch_corpus, read_splits
from sparing.errors import UserError


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, str]]:
    """A folder and the address it is served at."""
    monkeypatch.setattr(fetch, "PAUSE_S", 0.0)
    folder = tmp_path / "site"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.usefixtures("digits", "wiki")
def test_a_folder_given_by_hand_or_by_variable_is_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    (folder / "digits.xz").write_bytes(lzma.compress(TEXT))
    assert read_splits("digits", folder)["test"] == TEXT[90:]
    monkeypatch.setenv("SPARING_DATA", str(folder))
    assert read_splits("digits")["test"] == TEXT[90:]
    with pytest.raises(UserError, match="wiki has no public home"):
        read_splits("wiki")


def test_get_downloads_once_and_keeps_only_the_splits(
    digits: Corpus, site: tuple[Path, str], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, address = site
    archive = zip_of({"digits": TEXT})
    (folder / "digits.zip").write_bytes(archive)
    online = dataclasses.replace(
        digits,
        urls=(f"{address}/gone.zip", f"{address}/digits.zip"),
        checksums={**digits.checksums, "digits.zip": sha256(archive)},
    )
    monkeypatch.setitem(CORPORA, "digits", online)
    kept = fetch_corpus("digits", progress=False)
    assert kept == cache / "corpora" / "digits"
    assert {path.name for path in kept.iterdir()} == {"train.txt", "valid.txt", "test.txt"}
    assert not (cache / "downloads" / "digits").exists()
    (folder / "digits.zip").unlink()
    assert read_splits("digits")["valid"] == TEXT[80:90]


def test_who_needs_the_same_download_waits_and_takes_what_the_other_has_stored(
    digits: Corpus, site: tuple[Path, str], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, address = site
    (folder / "digits.gz").write_bytes(TEXT)
    online = dataclasses.replace(digits, urls=(f"{address}/digits.gz",))
    monkeypatch.setitem(CORPORA, "digits", online)
    asked, proceed, fetched = threading.Event(), threading.Event(), []

    def slow(*arguments: object, **options: object) -> dict[str, bytes]:
        fetched.append(1)
        asked.set()
        assert proceed.wait(10)
        return whole(*arguments, **options)  # type: ignore[arg-type]

    whole = reading._fetch
    monkeypatch.setattr(reading, "_fetch", slow)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(read_splits, "digits", progress=False)
        assert asked.wait(10)
        second = pool.submit(read_splits, "digits", progress=False)
        time.sleep(0.1)
        assert not second.done()
        proceed.set()
        assert first.result(10) == second.result(10)
    assert len(fetched) == 1
    assert not (cache / "downloads" / "digits").exists()


def test_three_plain_files_are_a_home_too(
    wiki: Corpus, site: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, address = site
    for split, text in PARTS.items():
        (folder / f"{split}.txt").write_bytes(text)
    online = dataclasses.replace(wiki, urls=(f"{address}/{{split}}.txt",))
    monkeypatch.setitem(CORPORA, "wiki", online)
    assert read_splits("wiki", progress=False) == PARTS


def test_a_download_with_wrong_text_is_not_kept(
    digits: Corpus, site: tuple[Path, str], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, address = site
    (folder / "digits.gz").write_bytes(TEXT[::-1])
    online = dataclasses.replace(digits, urls=(f"{address}/digits.gz",))
    monkeypatch.setitem(CORPORA, "digits", online)
    with pytest.raises(UserError, match=r"cannot get digits; .*--from PATH.*wrong checksum"):
        read_splits("digits", progress=False)
    assert not (cache / "corpora").exists()
    (folder / "digits.gz").write_bytes(TEXT)
    assert read_splits("digits", progress=False)["test"] == TEXT[90:]


@pytest.mark.usefixtures("digits")
def test_a_kept_copy_that_was_changed_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "copy").write_bytes(TEXT)
    folder = fetch_corpus("digits", tmp_path / "copy")
    (folder / "valid.txt").write_bytes(b"x" * 10)
    with pytest.raises(UserError, match="wrong checksum for digits"):
        read_splits("digits")
    fetch_corpus("digits", tmp_path / "copy")
    assert read_splits("digits")["valid"] == TEXT[80:90]


def test_any_file_is_a_corpus(tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_bytes(TEXT)
    splits = read_splits(str(tmp_path / "own.txt"))
    assert [len(splits[split]) for split in SPLITS] == [90, 5, 5]
    with pytest.raises(UserError, match="--from is for corpora with a public home"):
        read_splits(str(tmp_path / "own.txt"), tmp_path)


@pytest.mark.parametrize("name", ["enwik9", "", "nowhere"])
def test_an_unknown_name_suggests_the_nearest(name: str) -> None:
    with pytest.raises(UserError, match="unknown corpus") as caught:
        read_splits(name)
    if name == "enwik9":
        assert "did you mean 'enwik8'" in str(caught.value)
    with pytest.raises(UserError, match="unknown corpus"):
        fetch_corpus(name)


@pytest.mark.parametrize("name", ["nowhere/text", "moved.txt"])
def test_a_text_that_is_not_there_is_no_misspelt_corpus(name: str) -> None:
    with pytest.raises(UserError, match=f"^there is no text at {name}; bring it back"):
        read_splits(name)


def test_the_standard_library_needs_no_getting() -> None:
    assert (fetch_corpus("python-stdlib") / "ast.py").exists()
