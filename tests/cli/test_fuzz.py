"""Random command lines: one line of error or none, no traceback, no hang, nothing changed.

A case is drawn from a seed that its report names; the same chunk draws the same cases again.
"""

import io
import os
import resource
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any, Literal, get_args, get_origin

import pytest
import typer
from tests.cli.conftest import TINY, Sparing
from tests.search.small import searched_run

from sparing.cli.main import app
from sparing.config import described
from sparing.runs.recipes import recipe
from sparing.search import cost

SEARCH = [
    "model.dim=8", "model.relative.head_dim=4", "model.relative.memory=8",
    "model.feedforward.dim=8",
    "model.windowed.head_dim=4", "model.single_head.memory=8", "model.boom.dim=8",
    "model.search.candidates=xfi", "train.batch=4", "train.segment=8", "train.steps=6",
    "evaluate.batch=8", "evaluate.segment=32",
]  # fmt: skip
CHUNKS, CASES = 30, 50
LIMIT_S = 10.0
SPARE_BYTES = 6 * 2**30
"""Address space beyond what is in use; a case that wants more must say that it is out of memory."""

NUMBERS = [
    "0", "1", "2", "3", "-1", "-2", "7", "0.5", "1.5", "1e3", "1e-9", "-0.0", "nan", "inf", "-inf",
    "1e400", "1" + "0" * 30, "-1" + "0" * 30, "9" * 400, "0x10", "1_000", "01", "+1", "1,2", "1,-1",
]  # fmt: skip
HUGE = {number for number in NUMBERS if len(number) > 20 or number == "1e3"}
WORDS = [
    "", " ", "\t", "\n", "-", "--", "---", "-x", "=", "==", "a=b", "a.b.c=1", ".", "..", "none",
    "None", "true", "false", "()", "(0,)", "[]", "{}", "[" * 300, "x" * 300, "x" * 5000, "é", "Ω",
    "١٢", "½", "\uff19", "日本語", "👩‍🔬", "e\u0301", "\u202egnp", "\u2066x", "\u2028", "\u200b",
    "\x1b[2J", "\x1b]0;x\x07", "\x9b31m", "\x7f", "a\rb", "a\nb", "\udcff", "caf\udce9", "%s",
    "{0}", "$HOME", "~", "~nobody/x", "*", "'", '"', "`", ";", "|", "\\", "__class__", "RUN",
    "train", "quickstart", "enwik8", "python-stdlib", "enwik8_20min", "toy_par_search", "auto",
    "cpu", "cuda", "cuda:99", "cpu:9", "meta", "valid", "test", "bytes", "words", "best", "last",
    "previous", "../best", "rms", "float16", "1:2", "1.5:a line", "0,8", "model.memory=7",
    "x: model.memory=7",
]  # fmt: skip
LONG_WORK = {
    "--length", "--steps", "--minutes", "--seeds", "--random", "--turns", "--rounds", "--position",
    "--stacks", "--windows", "--words", "--rows", "train.steps", "train.epochs", "train.minutes",
}  # fmt: skip
"""More of these is more work, which may rightly take long."""
TEXT = ("generate", "score")
"""Commands that print text of a model or a user, as it is where it is piped."""


@dataclass(frozen=True)
class Place:
    """Folders and files that command lines may name."""

    root: Path

    @property
    def sound(self) -> Path:
        """A run and a search, kept as they were made."""
        return self.root / "sound"

    @property
    def runs(self) -> Path:
        """Copies of them for the commands."""
        return self.root / "runs"

    @property
    def out(self) -> Path:
        return self.root / "out"

    def paths(self) -> list[str]:
        """Existing, missing and special paths."""
        inside = ["text.txt", "empty", "binary", "half.json", "pipe", "runs", "runs/run", "missing"]
        inside += ["runs/search", "runs/run/config.json", "wild\x1b[31m\n", "no/such/file", "out"]
        return [*(str(self.root / name) for name in inside), "/", "/dev/null", "/proc/self/maps"]

    def restore(self) -> None:
        shutil.rmtree(self.runs, ignore_errors=True)
        shutil.copytree(self.sound, self.runs)

    def clear(self) -> None:
        shutil.rmtree(self.out, ignore_errors=True)
        for file in self.root.glob("out*"):
            file.unlink()

    def contents(self) -> dict[str, bytes]:
        return {str(file): file.read_bytes() for file in self.runs.rglob("*") if file.is_file()}


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


def templates(place: Place) -> list[tuple[list[str], list[str]]]:
    """Verbs with sound arguments, and the options that keep each of them short."""
    names = ("runs/run", "runs/search", "text.txt", "line")
    run, search, text, line = (str(place.root / name) for name in names)
    out = ["--out", str(place.out)]
    tiny = [word for one in (*TINY, "train.steps=2") for word in ("--set", one)]
    small = [word for one in (*TINY[:-1], "train.steps=2") for word in ("--set", one)]
    searching = [word for one in SEARCH for word in ("--set", one)]
    fresh = ["--data", text, *out, "--quiet"]
    bench = [*small, "--threads", "1", *out]
    return [
        (["train", "quickstart"], [*fresh, *tiny]),
        (["train", "--resume"], ["--out", run, "--quiet", "--set", "train.steps=14"]),
        (["compare", "quickstart"], [*fresh, *tiny, "--steps", "2", "--variant", "model.memory=8"]),
        (["search", "toy_par_search"], [*fresh, *searching]),
        (["derive", search], ["--out", f"{place.out}.json"]),
        (["board", search], [*out, "--quiet", "--seeds", "1", "--set", "train.steps=1"]),
        (["evaluate", run], []),
        (["generate", run], ["--length", "3"]),
        (["score", run, text], []),
        (["score", line], ["--whole"]),
        (["info", run], []),
        (["info", "quickstart"], []),
        (["recipes"], []),
        (["results", str(place.runs)], []),
        (["plot", run], ["--out", f"{place.out}.png"]),
        (["import", "adaptive-span", text], out),
        (["data", "list"], []),
        (["data", "get", "enwik8"], []),
        (["data", "prepare", text], []),
        (["data", "cutoffs", text], []),
        (["bench", "train", "quickstart"], [*bench, "--steps", "1"]),
        (["bench", "generate", run], [*out, "--length", "2", "--position", "2100"]),
        (["bench", "cutoffs"], [*out, "--words", "500", "--turns", "1"]),
        ([], []),
    ]


def parameters_of(words: list[str]) -> list[Any]:
    """The options of a command, as the library describes them."""
    command: Any = typer.main.get_command(app)
    for word in words:
        command = getattr(command, "commands", {}).get(word, command)
    return [option for option in command.params if option.opts[0].startswith("--")]


def draw_value(draw: Random, place: Place, name: str, kind: type | None) -> str:
    """A value for an option or a setting, mostly of the right kind."""
    numbers = [value for value in NUMBERS if name not in LONG_WORK or value not in HUGE]
    whole = [value for value in numbers if value.strip("+-_").isdigit()]
    pools = {int: whole, float: numbers, Path: place.paths()}
    if kind in pools and draw.random() < 0.8:
        return draw.choice(pools[kind])
    return draw.choice([draw.choice(numbers), draw.choice(WORDS), draw.choice(place.paths())])


def draw_setting(draw: Random, place: Place) -> str:
    """A setting that exists or nearly does, with a value."""
    run = recipe(draw.choice(["quickstart", "toy_par_search"]))
    path, old, _ = draw.choice(described(run))
    value = draw_value(draw, place, path, type(old))
    if draw.random() < 0.2:
        path = draw.choice([path[:-1], path.partition(".")[0], path.rpartition(".")[2], f"{path}."])
        return f"{path}{draw.choice(['=', ' = ', ''])}{value}"
    return f"{path}={value}"


def draw_option(draw: Random, place: Place, words: list[str]) -> list[str]:
    """An option of the command, mostly with a value of the right kind; or of no command."""
    known = [option for option in parameters_of(words) if option.name != "debug"]
    if not known or draw.random() < 0.1:
        return draw.choice([["--nope"], ["--Json"], ["--set"], ["--out"], ["-h"], ["--help"]])
    option = draw.choice(known)
    name = option.opts[0]
    if option.is_flag:
        return [draw.choice([*[name] * 9, f"{name}=1"])]
    if name == "--set":
        return [name, draw_setting(draw, place)]
    kind = option.type_descriptor.annotation
    value = draw_value(draw, place, name, kind)
    if get_origin(kind) is Literal and draw.random() < 0.8:
        value = draw.choice(get_args(kind))
    forms = ([name, value], [name, value], [f"{name}={value}"], [name, value] * 2)
    return draw.choice(forms)


def draw_case(draw: Random, place: Place) -> list[str]:
    """A sound command line with other words, or, three times in four, with other options."""
    words, guards = draw.choice(templates(place))
    words, more = list(words), list[str]()
    for _ in range(draw.randint(1, 2)):
        odd = draw.choice([draw.choice(WORDS), draw.choice(NUMBERS), draw.choice(place.paths())])
        match draw.randrange(16):
            case 0 if words:
                words[draw.randrange(len(words))] = odd
            case 1 if len(words) > 1:
                words[-1] = odd
            case 2:
                words.insert(draw.randint(0, len(words)), odd)
            case 3 if len(words) > 1:
                words.pop(draw.randrange(1, len(words)))
            case _:
                more += draw_option(draw, place, words)
    return [*words, *guards, *more]


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
    if not "".join(shown.split("\n")).replace("\t", "").isprintable() and has_controls(shown):
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
