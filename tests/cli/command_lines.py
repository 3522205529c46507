"""Command lines drawn at random: sound ones with other words, options, values and settings."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal, get_args, get_origin

import typer
from tests.cli.conftest import TINY

from sparing.cli.main import app
from sparing.config import described
from sparing.runs.recipes import recipe

SEARCH = [
    "model.dim=8", "model.relative.head_dim=4", "model.relative.memory=8",
    "model.feedforward.dim=8",
    "model.windowed.head_dim=4", "model.single_head.memory=8", "model.boom.dim=8",
    "model.search.candidates=xfi", "train.batch=4", "train.segment=8", "train.steps=6",
    "evaluate.batch=8", "evaluate.segment=32",
]  # fmt: skip
NUMBERS = [
    "0", "1", "2", "3", "-1", "-2", "7", "0.5", "1.5", "1e3", "1e-9", "-0.0", "nan", "inf", "-inf",
    "1e400", "1" + "0" * 30, "-1" + "0" * 30, "9" * 400, "0x10", "1_000", "01", "+1", "1,2", "1,-1",
]  # fmt: skip
HUGE = {number for number in NUMBERS if len(number) > 20 or number in ("1e3", "1_000")}
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


UNDRAWN = ("debug", "install_completion", "show_completion")
"""Options that show tracebacks, or change the shell of whoever runs the tests."""


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
        (["decompress", line], ["--model", run, *out]),
        (["info", run], []),
        (["info", "quickstart"], []),
        (["recipes"], []),
        (["results", str(place.runs)], []),
        (["plot", run], ["--out", f"{place.out}.png"]),
        (["import", "adaptive-span", text], out),
        (["import", "sha-rnn", text], out),
        (["import", "transformer-xl", text], out),
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
    known = [option for option in parameters_of(words) if option.name not in UNDRAWN]
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
