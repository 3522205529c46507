"""Text on disk: read in pieces, unpacked into files without a name."""

import errno
import gc
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparing.data.text import count_words, split_blocks, split_chunks
from sparing.data.textfile import Scratch, Unpacking, join_texts, open_text
from sparing.errors import UserError


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("digits") / "text"
    path.write_bytes(b"0123456789")
    return path


@given(*[st.none() | st.integers(-12, 12)] * 4)
def test_a_stretch_of_a_file_is_cut_as_bytes_are(digits: Path, a, b, c, d) -> None:
    assert bytes(open_text(digits)[a:b][c:d]) == b"0123456789"[a:b][c:d]
    assert len(open_text(digits)[a:b]) == len(b"0123456789"[a:b])


def test_a_file_is_split_as_bytes_are(tmp_path: Path) -> None:
    text = "the cät sat\non thé mat ".encode() * 9
    (tmp_path / "text").write_bytes(text)
    stored = open_text(tmp_path / "text")
    assert list(split_chunks(stored, 20)) == list(split_chunks(text, 20))
    assert list(split_blocks(stored, 7)) == list(split_blocks(text, 7))
    assert count_words(stored) == count_words(text)


def test_a_file_that_shrinks_while_it_is_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"0123456789")
    text = open_text(tmp_path / "text")
    (tmp_path / "text").write_bytes(b"01234")
    with pytest.raises(UserError, match="text became shorter while it was read; try again"):
        bytes(text)


def test_scratch_files_have_no_name_and_are_closed_with_their_texts(cache: Path) -> None:
    before = len(os.listdir("/dev/fd"))
    with Scratch(Path("x"), Unpacking.of(9)) as scratch:
        parts = [scratch.write([b"ab", b"c"]), scratch.write([b"def"])]
    assert [bytes(part) for part in parts] == [b"abc", b"def"]
    joined = join_texts(parts[::-1], Path("x"), Unpacking.of(9))
    assert bytes(joined) == b"defabc"
    assert list(cache.iterdir()) == []
    del scratch, parts, joined
    assert len(os.listdir("/dev/fd")) == before


LAST = """
import codecs, sys
from pathlib import Path
from sparing.data import textfile
text = textfile.open_text(Path(sys.argv[1]))
# Keeps both modules until the interpreter empties them, in the reverse order of their imports.
modules = textfile, sys.modules["__main__"]
codecs.register(lambda name, modules=modules: None)
"""


def test_a_text_that_outlives_its_module_ends_in_silence(digits: Path) -> None:
    command = [sys.executable, "-c", LAST, str(digits)]
    source = str(Path(__file__).parents[2] / "src")
    environment = os.environ | {"PYTHONPATH": source}
    said = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "")


def test_a_file_that_cannot_be_opened_ends_in_silence(
    digits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "dup", refuse)
    # An exception in a finalizer would be a warning, and so an error.
    with pytest.raises(OSError, match="Too many"):
        open_text(digits)
    gc.collect()


def test_the_limit_is_half_of_the_free_disk_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 31))
    with pytest.raises(UserError, match=r"text holds more than 1,073,741,824 .*half of the 2\.0 G"):
        Unpacking.of().check(Path("text"), (1 << 30) + 1)
    Unpacking.of().check(Path("text"), 1 << 30)
    with pytest.raises(UserError, match="--max-bytes must be at least 1, not 0"):
        Unpacking.of(0)
