"""Pipes, sockets and files of /proc in place of files are refused at once, in one line."""

import os
import re
import socket
from pathlib import Path

import pytest
from tests.cli.conftest import Sparing


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def link_to_proc(path: Path) -> None:
    path.symlink_to("/proc/version")


@pytest.mark.parametrize("make", [make_pipe, make_socket, link_to_proc])
def test_wherever_a_user_names_a_file(
    make, tmp_path: Path, sparing: Sparing, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The path of a socket is short.
    monkeypatch.chdir(tmp_path)
    odd = Path("odd.json")
    make(odd)
    for words in (
        ("data", "prepare", odd),
        ("data", "cutoffs", odd),
        ("data", "get", "enwik8", "--from", odd),
        ("data", "prepare", "text8", "--from", odd),
        ("train", "quickstart", "--data", odd, "--out", "run"),
        ("train", odd, "--out", "run"),
        ("compare", odd, "--out", "runs"),
        ("score", odd),
        ("generate", "--prompt-file", odd),
        ("import", "adaptive-span", odd, "--out", "run"),
    ):
        said = sparing(*words)
        assert said.status == 2, words
        assert said.err.count("\n") == 1, said.err
        assert re.search("(odd.json|/proc/version) is (a|made up)", said.err)
        assert list(tmp_path.iterdir()) == [tmp_path / "odd.json"]


def test_in_place_of_the_files_of_a_run(run: Path, sparing: Sparing) -> None:
    for name, command in {
        "vocab.json": ("evaluate", run),
        "metrics.jsonl": ("plot", run, "--what", "curves"),
    }.items():
        stored = (run / name).rename(run / "stored")
        os.mkfifo(run / name)
        said = sparing(*command)
        assert (said.status, said.err.count("\n")) == (2, 1)
        assert f"{name} is a named pipe, not a file" in said.err
        stored.rename(run / name)


def test_the_standard_input_of_the_shell_is_read(
    sparing: Sparing, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, into = os.pipe()
    os.write(into, b"the cat\nsat\n")
    os.close(into)
    with os.fdopen(out, "rb") as pipe:
        said = sparing("score", f"/dev/fd/{pipe.fileno()}", "--json")
    assert said.status == 0, said.err
    assert len(said.json()["scores"]) == 2
