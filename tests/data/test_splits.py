"""The text of a corpus: from a copy, from the cache, downloaded, or a file of one's own."""

import dataclasses
import errno
import lzma
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.data.conftest import PARTS, TEXT, read_all, sha256, zip_of

from sparing.data import download
from sparing.data import splits as module
from sparing.data.corpora import CORPORA, SPLITS, Corpus
from sparing.data.splits import cache_dir, fetch_corpus, fingerprint, read_splits
from sparing.errors import UserError


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, str]]:
    """A folder and the address it is served at."""
    monkeypatch.setattr(download, "PAUSE_S", 0.0)
    folder = tmp_path / "site"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.usefixtures("digits", "wiki")
def test_a_given_folder_and_that_of_the_variable_are_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    (folder / "digits.xz").write_bytes(lzma.compress(TEXT))
    assert read_all("digits", folder)["test"] == TEXT[90:]
    monkeypatch.setenv("SPARING_DATA", str(folder))
    assert read_all("digits")["test"] == TEXT[90:]
    with pytest.raises(UserError, match="wiki cannot be downloaded"):
        read_splits("wiki")


def test_fetching_downloads_once_and_keeps_only_the_splits(
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
    kept = fetch_corpus("digits")
    assert kept == cache / "corpora" / "digits"
    assert {path.name for path in kept.iterdir()} == {"train.txt", "valid.txt", "test.txt"}
    assert not (cache / "downloads" / "digits").exists()
    (folder / "digits.zip").unlink()
    assert read_all("digits")["valid"] == TEXT[80:90]


def test_concurrent_readers_share_one_download(
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
        assert proceed.wait(60)
        return whole(*arguments, **options)  # type: ignore[arg-type]

    whole = module._download_from
    monkeypatch.setattr(module, "_download_from", slow)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(read_all, "digits")
        assert asked.wait(60)
        second = pool.submit(read_all, "digits")
        time.sleep(0.1)
        assert not second.done()
        proceed.set()
        assert first.result(60) == second.result(60)
    assert len(fetched) == 1
    assert not (cache / "downloads" / "digits").exists()


def test_a_corpus_can_be_downloaded_as_three_plain_files(
    wiki: Corpus, site: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, address = site
    for split, text in PARTS.items():
        (folder / f"{split}.txt").write_bytes(text)
    online = dataclasses.replace(wiki, urls=(f"{address}/{{split}}.txt",))
    monkeypatch.setitem(CORPORA, "wiki", online)
    assert read_all("wiki") == PARTS


def test_a_download_with_wrong_text_is_not_kept(
    digits: Corpus, site: tuple[Path, str], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, address = site
    (folder / "digits.gz").write_bytes(TEXT[::-1])
    online = dataclasses.replace(digits, urls=(f"{address}/digits.gz",))
    monkeypatch.setitem(CORPORA, "digits", online)
    with pytest.raises(UserError, match=r"cannot get digits; .*--from .*wrong checksum"):
        read_splits("digits")
    assert not (cache / "corpora").exists()
    (folder / "digits.gz").write_bytes(TEXT)
    assert read_all("digits")["test"] == TEXT[90:]


@pytest.mark.usefixtures("digits")
def test_a_modified_cached_copy_is_refused(tmp_path: Path) -> None:
    (tmp_path / "copy").write_bytes(TEXT)
    folder = fetch_corpus("digits", tmp_path / "copy")
    (folder / "valid.txt").write_bytes(b"x" * 10)
    with pytest.raises(UserError, match="wrong checksum for digits"):
        read_splits("digits")
    fetch_corpus("digits", tmp_path / "copy")
    assert read_all("digits")["valid"] == TEXT[80:90]


@pytest.fixture
def unverified(digits: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """`digits` without checksums, so that any text of its size is a copy."""
    monkeypatch.setitem(CORPORA, "digits", dataclasses.replace(digits, checksums={}))


@pytest.mark.usefixtures("unverified")
def test_a_stored_copy_outlives_a_new_one_that_cannot_be_stored(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "copy").write_bytes(TEXT)
    folder = fetch_corpus("digits", tmp_path / "copy")
    (tmp_path / "copy").write_bytes(TEXT[::-1])

    def full(text: object) -> Iterator[bytes]:
        yield b"half"
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module, "split_blocks", full)
        for source in (tmp_path / "copy", folder):
            with pytest.raises(OSError, match="No space left"):
                fetch_corpus("digits", source)
            assert read_all("digits") == {
                "train": TEXT[:80],
                "valid": TEXT[80:90],
                "test": TEXT[90:],
            }
    assert [path.name for path in (cache / "corpora").iterdir()] == ["digits"]


@pytest.mark.usefixtures("unverified")
def test_a_new_copy_takes_the_place_of_the_stored_one(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "copy").write_bytes(TEXT)
    folder = fetch_corpus("digits", tmp_path / "copy")
    (tmp_path / "copy").write_bytes(TEXT[::-1])
    assert fetch_corpus("digits", tmp_path / "copy") == folder
    assert read_all("digits")["train"] == TEXT[::-1][:80]
    fetch_corpus("digits", folder)
    assert read_all("digits")["train"] == TEXT[::-1][:80]
    assert [path.name for path in (cache / "corpora").iterdir()] == ["digits"]


def test_any_text_file_is_a_corpus(tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_bytes(TEXT)
    splits = read_all(str(tmp_path / "own.txt"))
    assert [len(splits[split]) for split in SPLITS] == [90, 5, 5]
    with pytest.raises(UserError, match="--from is for corpora that can be downloaded"):
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
def test_a_missing_path_is_not_taken_for_a_misspelled_corpus(name: str) -> None:
    with pytest.raises(UserError, match=f"^there is no text at {name}; check the path"):
        read_splits(name)


def test_the_standard_library_needs_no_download() -> None:
    assert (fetch_corpus("python-stdlib") / "ast.py").exists()


def test_the_cache_has_a_default_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARING_HOME", str(tmp_path))
    assert cache_dir() == tmp_path
    monkeypatch.delenv("SPARING_HOME")
    assert cache_dir() == Path.home() / ".cache" / "sparing"


@pytest.mark.parametrize(
    "data",
    [TEXT, lzma.compress(TEXT), zip_of({"digits": TEXT, "readme": b"x"})],
    ids=["plain", "xz", "zip"],
)
@pytest.mark.usefixtures("digits")
def test_one_file_is_cut_at_its_offsets(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "copy").write_bytes(data)
    splits = read_all("digits", tmp_path / "copy")
    assert splits == {"train": TEXT[:80], "valid": TEXT[80:90], "test": TEXT[90:]}


@pytest.mark.parametrize("pattern", ["wiki-v1/wiki.{}.tokens", "{}.txt"])
@pytest.mark.usefixtures("wiki")
def test_member_files_become_splits(tmp_path: Path, pattern: str) -> None:
    archive = zip_of({pattern.format(split): text for split, text in PARTS.items()})
    (tmp_path / "copy").write_bytes(archive)
    assert read_all("wiki", tmp_path / "copy") == PARTS
    folder = tmp_path / "unpacked"
    folder.mkdir()
    for split, text in PARTS.items():
        (folder / Path(pattern.format(split)).name).write_bytes(text)
    assert read_all("wiki", folder) == PARTS


@pytest.mark.usefixtures("digits", "wiki")
def test_wrong_copies_are_refused_and_not_deleted(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.write_bytes(TEXT[::-1])
    with pytest.raises(UserError, match=r"wrong checksum .* expected sha256:.* found sha256:"):
        read_splits("digits", copy)
    copy.write_bytes(TEXT[:-1])
    with pytest.raises(UserError, match="holds 99 bytes, but digits has 100"):
        read_splits("digits", copy)
    copy.write_bytes(zip_of({"wiki.valid.tokens": PARTS["valid"]}))
    with pytest.raises(UserError, match=r"holds no wiki\.train\.tokens or train\.txt"):
        read_splits("wiki", copy)
    with pytest.raises(UserError, match="is missing"):
        read_splits("digits", tmp_path / "nowhere")
    assert copy.exists()


def test_part_of_text8_has_a_name_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "text8_first_1000").write_bytes(b"a prefix  " * 100)
    with pytest.raises(UserError, match=r"1,000 bytes, but text8 has .*the name text8-prefix"):
        read_splits("text8", tmp_path / "text8_first_1000")
    splits = read_all("text8-prefix", tmp_path)
    assert [len(splits[split]) for split in SPLITS] == [900, 50, 50]
    with pytest.raises(UserError, match="cannot be downloaded"):
        fingerprint("text8-prefix")


def test_half_of_wikitext_103_is_refused(shared_data: Path) -> None:
    with pytest.raises(UserError, match=r"holds no wiki\.train\.tokens"):
        read_splits("wikitext-103", shared_data / "wikitext-103-valid-test.tar.xz")
