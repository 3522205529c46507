""""""

import gzip
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparing.data import local
from sparing.data.local import (
    path_fingerprint,
    read_path,
    read_stdlib,
    split_by_bytes,
    split_for_file,
)
from sparing.errors import UserError
from sparing.files import atomic_folder


def test_a_folder_appears_when_it_is_complete(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "new" / "folder") as scratch:
        (scratch / "file").write_text("whole")
        assert not (tmp_path / "new" / "folder").exists()
    assert (tmp_path / "new" / "folder" / "file").read_text() == "whole"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["folder"]


def half_a_folder(folder: Path) -> None:
    with atomic_folder(folder) as scratch:
        (scratch / "file").write_text("half")
        raise RuntimeError


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        half_a_folder(tmp_path / "new" / "folder")
    assert list((tmp_path / "new").iterdir()) == []


def test_the_first_to_finish_wins(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "folder") as scratch:
        (scratch / "file").write_text("late")
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "file").write_text("early")
    assert (tmp_path / "folder" / "file").read_text() == "early"


def test_what_a_killed_process_left_is_swept_away(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from sparing.data.local import building\n"
        "with building(Path(sys.argv[1])) as scratch:\n"
        "    (scratch / 'file').write_text('half'); time.sleep(60)\n"
    )
    source = str(Path(__file__).parents[2] / "src")
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "new" / "folder")],
        env=os.environ | {"PYTHONPATH": source},
    )
    deadline = time.monotonic() + 30
    while not list(tmp_path.glob("new/.folder.*/file")) and time.monotonic() < deadline:
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert not (tmp_path / "new" / "folder").exists()
    with atomic_folder(tmp_path / "new" / "folder") as scratch:
        (scratch / "file").write_text("whole")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["folder"]


@given(st.text(min_size=60, max_size=300))
def test_a_split_loses_nothing_and_cuts_no_character(text: str) -> None:
    encoded = text.encode("utf-8")
    splits = split_by_bytes(encoded)
    assert list(splits) == ["train", "valid", "test"]
    assert b"".join(splits.values()) == encoded
    for part, share in zip(splits.values(), (0.9, 0.05, 0.05), strict=True):
        part.decode("utf-8")
        assert abs(len(part) - share * len(encoded)) <= 5


def test_a_folder_is_its_text_files_in_order(tmp_path: Path) -> None:
    for name, data in {
        "b.txt": b"B" * 50,
        "a/z.txt": b"A" * 50,
        "binary.bin": b"\0" * 50,
        ".hidden": b"H" * 50,
        ".git/config": b"G" * 50,
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    assert read_path(tmp_path) == b"A" * 50 + b"B" * 50


def test_a_single_file_may_be_packed_or_binary(tmp_path: Path) -> None:
    (tmp_path / "packed").write_bytes(gzip.compress(b"\0text" * 50))
    assert read_path(tmp_path / "packed") == b"\0text" * 50


def test_bad_files_are_refused_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "one").write_bytes(b"x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "binary").write_bytes(b"\0" * 500)
    for name, reason in {
        "nowhere": "is missing",
        "empty": "holds no text",
        "one": "holds 1 byte of text; a corpus needs at least 100",
        "folder": "holds no text",
    }.items():
        with pytest.raises(UserError, match=reason):
            read_path(tmp_path / name)
    with pytest.raises(UserError, match="neither a file nor a folder"):
        read_path(Path("/dev/zero"))


def test_a_fingerprint_follows_the_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one")
    before = path_fingerprint(tmp_path)
    assert path_fingerprint(tmp_path) == before
    (tmp_path / "a.txt").write_bytes(b"three")
    assert path_fingerprint(tmp_path) != before
    (tmp_path / "a.txt").write_bytes(b"one")
    (tmp_path / "b.txt").write_bytes(b"two")
    assert path_fingerprint(tmp_path) != before


def test_the_standard_library_is_read_the_same_twice_and_shared_out_by_file() -> None:
    splits = read_stdlib()
    assert splits == read_stdlib()
    total = sum(map(len, splits.values()))
    assert total > 2_000_000
    assert 0.8 < len(splits["train"]) / total < 0.97
    for split, text in splits.items():
        names = [line[8:] for line in text.splitlines() if line.startswith(b"# file: ")]
        assert {split_for_file(name.decode()) for name in names} == {split}
        assert names == sorted(names)
        assert not any(b"/tests/" in b"/" + name or b"site-packages" in name for name in names)
        text.decode("utf-8")


def test_library_files_keep_their_split_whatever_the_version() -> None:
    assert [split_for_file(name) for name in ("ast.py", "json/decoder.py")] == ["train", "valid"]


def test_an_interpreter_without_source_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "stdlib_folder", lambda: tmp_path)
    with pytest.raises(UserError, match="no Python source"):
        read_stdlib()
