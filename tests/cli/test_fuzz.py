"""Random command lines: one line of error or none, no traceback, no hang, nothing changed.

A case is drawn from a seed that its report names; the same chunk draws the same cases again.
"""

import io
import os
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import FrameType

import pytest
from tests.cli.command_lines import Place, draw_case
from tests.cli.conftest import Sparing
from tests.search.small import searched_run

from sparing.search import cost

CHUNKS, CASES = 30, 50
LIMIT_S = 10.0
SPARE_BYTES = 6 * 2**30
"""Address space beyond what is in use; a case that wants more must say that it is out of memory."""

TEXT = ("generate", "score")
"""Commands that print text of a model or a user, as it is where it is piped."""


@pytest.fixture
def place(
    sparing: Sparing, run: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Place:
    found = Place(tmp_path)
    (tmp_path / "sound").mkdir()
    run.rename(found.sound / "run")
    searched_run(found.sound / "search", "xfxf", f"data.corpus={corpus}")
    (tmp_path / "empty").touch()
    (tmp_path / "line").write_text("a line\n")
    (tmp_path / "binary").write_bytes(bytes(range(256)) * 8)
    (tmp_path / "half.json").write_text('{"family": "stack", "model": {')
    (tmp_path / "wild\x1b[31m\n").write_text("some text\n" * 99)
    os.mkfifo(tmp_path / "pipe")
    found.restore()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cost, "TURNS", 1)
    monkeypatch.setattr(cost, "LAPS", 1)
    monkeypatch.setattr("urllib.request.urlopen", offline)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    return found


def offline(*_: object, **__: object) -> None:
    raise OSError("no network here")


class HangError(BaseException):
    """A command took longer than a user waits."""


@contextmanager
def watchdog() -> Iterator[None]:
    """Raise HangError after a while; and bound the memory, so that no case can end the tests."""

    marks = [time.process_time()]

    def bark(number: int, frame: FrameType | None) -> None:
        marks.append(time.process_time())
        # On a busy machine, ten seconds may be little work; one that waits does none at all.
        if marks[-1] - marks[-2] < 0.2 or marks[-1] - marks[0] > LIMIT_S:
            raise HangError

    before, limits = signal.signal(signal.SIGALRM, bark), resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + SPARE_BYTES, limits[1]))
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, limits)


def complaint(sparing: Sparing, words: list[str], place: Place) -> str:
    """What is wrong with how a command line was answered; empty if nothing is."""
    before = place.contents()
    try:
        with watchdog():
            said = sparing(*words)
    except BaseException as problem:
        return f"{type(problem).__name__}: {problem}"
    shown = said.err if set(TEXT) & set(words) else said.err + said.out
    if has_controls(shown):
        return f"control characters in {shown!r}"
    if said.status not in ((0, 1, 2) if {"compare", "board"} & set(words) else (0, 2)):
        return f"status {said.status}: {said.err}"
    if said.status != 2:
        return ""
    lines = said.err.splitlines()
    if not lines or not lines[-1].startswith("sparing: ") or not noted(lines[:-1]):
        return f"not one line: {said.err!r}"
    if place.contents() != before and "the loss" not in said.err:
        return f"changed the run: {said.err}"
    return ""


def noted(lines: list[str]) -> bool:
    """Whether the lines before the error are about runs or trials that were left out."""
    return all("left out" in line or "failed" in line for line in lines)


def has_controls(text: str) -> bool:
    return any(
        (ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160 or c in "\u2028\u202e\u2066"
        for c in text
    )


@pytest.mark.soak
@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_command_line_ends_in_a_traceback(chunk: int, place: Place, sparing: Sparing) -> None:
    found = []
    for number in range(CASES):
        words = draw_case(Random(f"{chunk}-{number}"), place)
        if wrong := complaint(sparing, words, place):
            found.append(f"seed {chunk}-{number}: {words}\n    {wrong}")
        place.clear()
        place.restore()
    assert not found, "\n".join(found)
