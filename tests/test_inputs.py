"""Ordinary files are opened; whatever could block or never end is refused."""

import io
import os
import socket
from pathlib import Path

import pytest

from sparing import inputs
from sparing.errors import UserError
from sparing.files import read_json
from sparing.inputs import open_regular, read_input

MADE_UP = Path("/proc/self/status")


def special_file(kind: str, folder: Path) -> Path:
    path = folder / kind
    if kind == "named pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
    elif kind == "folder":
        path.mkdir()
    return path if path.exists() else Path("/dev/zero")


@pytest.mark.parametrize("kind", ["named pipe", "socket", "device", "folder"])
@pytest.mark.parametrize("read", [open_regular, read_input, read_json])
def test_special_files_are_refused_without_waiting(tmp_path: Path, kind: str, read) -> None:
    path = special_file(kind, tmp_path)
    for name in (path, tmp_path / "link"):
        with pytest.raises(UserError, match=f"{name} is a {kind}, not a file"):
            read(name)
        if name == path:
            (tmp_path / "link").symlink_to(path)


@pytest.mark.skipif(not MADE_UP.exists(), reason="needs /proc")
def test_files_that_the_system_makes_up_are_refused() -> None:
    with pytest.raises(UserError, match="is made up by the system as it is read; copy it"):
        open_regular(MADE_UP)


def test_empty_and_missing_files_are_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with open_regular(tmp_path / "empty") as file:
        assert file.read() == b""
    with pytest.raises(UserError, match="nowhere is missing"):
        open_regular(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["-", "/dev/stdin"])
def test_standard_input_is_read_to_its_end(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"text")))
    assert read_input(Path(name)) == b"text"


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="needs /dev/fd")
def test_what_the_shell_opened_is_read_to_its_end() -> None:
    out, into = os.pipe()
    os.write(into, b"text")
    os.close(into)
    try:
        assert read_input(Path(f"/dev/fd/{out}")) == b"text"
    finally:
        os.close(out)


def test_an_input_too_large_for_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "MAX_BYTES", 10)
    monkeypatch.setattr(inputs, "BLOCK_BYTES", 4)
    (tmp_path / "text").write_bytes(b"x" * 11)
    with pytest.raises(UserError, match="text holds more than 10 bytes; give a part of it"):
        read_input(tmp_path / "text")
    (tmp_path / "text").write_bytes(b"x" * 10)
    assert len(read_input(tmp_path / "text")) == 10
