"""Any command on any damaged folder: it works, or it is one line and nothing has changed.

`SPARING_FUZZ_SEED=N SPARING_FUZZ_CASES=1` repeats the case that a failure names.
"""

import contextlib
import io
import os
import random
import shutil
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.cli.conftest import settings
from tests.cli.damage import damage
from tests.cli.test_search import SEARCH, SMALL, words

from sparing.cli.main import main
from sparing.experiments.subprocess import SignalRelay
from sparing.search import cost

CPU_S, WAIT_S = 10, 60
"""Processor time that a command may take; it may wait longer, as other tests run beside it."""
LSTM = [
    "model.dim=8", "model.hidden_dim=8", "train.batch=4", "train.segment=8", "train.steps=4",
    "train.log_every=2", "evaluate.batch=4", "evaluate.segment=16", "train.evaluate_bytes=none",
]  # fmt: skip
STACK = [*SMALL, "model.boom.dim=8", "data.vocab=symbols", "train.steps=4"]
RUNS = {
    "sha": ("train", "quickstart", settings("train.steps=4", "train.checkpoint_every=2")),
    "stack": ("train", "enwik8_par", words(*STACK, "train.compiled=false")),
    "words": ("train", "wikitext2_awd_lstm", words(*LSTM, "data.vocab=words")),
    "search": ("search", "toy_par_search", words(*SEARCH, "train.steps=4")),
}
VARIANT = ["--variant", "short: model.memory=16", *settings("train.steps=4")]
SHOW = ("info {run}", "info {run} --json --config", "results {base}", "results {run} --json")
SCORE = (
    "evaluate {run} --bytes 400",
    "evaluate {run} --split test --checkpoint last --json",
    "generate {run} --length 4 --prompt the",
    "score {run} --text dogs --json",
    "plot {run} --what context --length 8 --windows 2",
)
RESUME = (
    "train --resume --out {run} --quiet",
    "train --resume --out {run} --quiet --set train.steps=6",
    "train --resume --out {run} --quiet --checkpoint best --set optim.lr=1e-4",
    "train --resume --out {run} --quiet --checkpoint previous --set train.steps=6",
)
DRAW = ("plot {run}", "plot {run} --x minutes --json")
SEARCHED = (
    "derive {run}",
    "derive {run} --checkpoint best --json",
    "search --resume --out {run} --quiet",
    "search --resume --out {run} --quiet --set train.steps=6 --json",
    "plot {run} --what pi",
    "train {run}/recipe.json --out {base}/new --quiet",
)
COMPARE = ("compare quickstart --data {text} --out {base}/compare --quiet",)
READERS = {
    "config.json": (*SHOW, *SCORE, *RESUME, *DRAW),
    "vocab.json": (*SCORE, *RESUME),
    "data.json": ("evaluate {run}", *RESUME),
    "provenance.json": (*SHOW, *DRAW, *RESUME, "evaluate {run}"),
    "results.json": (*SHOW, "evaluate {run}", *RESUME),
    "metrics.jsonl": (*DRAW, *RESUME, "results {base}"),
    "manifest.json": (*SCORE, *RESUME),
    "cursor.json": (*SCORE, *RESUME, "results {base}"),
    "meta.json": ("evaluate {run} --split test", *RESUME, "data prepare --data {text}"),
    "recipe.json": ("train {run}/recipe.json --out {base}/new --quiet", "info {run}/recipe.json"),
    "compare.json": COMPARE,
}
"""The commands that read a document; every other file of a run is read by `SCORE` and `RESUME`."""


class HungError(BaseException):
    """The command took too long."""


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with sound runs, a search, a comparison and the tokens they share."""
    base = tmp_path_factory.mktemp("damaged") / "base"
    base.mkdir()
    text = base.parent / "text.txt"
    text.write_text("".join(f"line {n}: {n * n} lazy dogs\n" for n in range(150)))
    with _prepared(base):
        for name, (verb, recipe, changed) in RUNS.items():
            out = base / "runs" / name
            more = ["--data", str(text), "--out", str(out), "--quiet", *changed]
            assert _call([verb, recipe, *more])[0] == 0
        # So that the folders hold all there can be in them.
        again = ["train", "--resume", "--out", str(base / "runs" / "sha"), "--quiet"]
        assert _call([*again, "--set", "train.steps=5"])[0] == 0
        assert _call(["evaluate", str(base / "runs" / "sha"), "--split", "test"])[0] == 0
        compare = ["compare", "quickstart", "--data", str(text), "--out", str(base / "compare")]
        assert _call([*compare, "--quiet", *VARIANT])[0] == 0
    return base.rename(base.with_name("pristine"))


@pytest.fixture
def base(pristine: Path) -> Iterator[Path]:
    """Where those folders were made; each case begins with a copy of them."""
    with _prepared(pristine.with_name("base")):
        yield pristine.with_name("base")


@contextlib.contextmanager
def _prepared(base: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SPARING_HOME", str(base / "home"))
        patched.setattr(cost, "TURNS", 1)
        patched.setattr(cost, "LAPS", 1)
        patched.setattr(SignalRelay, "run", _run_here)
        yield


def _run_here(self: SignalRelay, command: Sequence[str], *, shown: bool) -> tuple[int, str]:
    status, said = _call(command[3:])
    return status, said.strip().splitlines()[-1] if status else ""


def test_a_sample_of_damage_is_survived_or_refused(base: Path) -> None:
    _check(base, first=5100, cases=24)


@pytest.mark.soak
def test_damage_of_any_kind_is_survived_or_refused(base: Path) -> None:
    first = int(os.environ.get("SPARING_FUZZ_SEED", "1000"))
    _check(base, first, int(os.environ.get("SPARING_FUZZ_CASES", "1000")))


def _check(base: Path, first: int, cases: int) -> None:
    found = [(seed, wrong) for seed in range(first, first + cases) if (wrong := _try(base, seed))]
    shown = "\n\n".join(f"case {seed}: {wrong}" for seed, wrong in found)
    assert not found, f"{len(found)} of {cases} cases failed\n{shown}"


def _try(base: Path, seed: int) -> str:
    """Run one case; what went wrong, or nothing."""
    shutil.rmtree(base, ignore_errors=True)
    shutil.copytree(base.with_name("pristine"), base, symlinks=True)
    draw = random.Random(seed)
    files = sorted(path for path in base.rglob("*") if path.is_file() and path.name[0] != ".")
    names = sorted({path.name for path in files if path.name in READERS or draw.random() < 0.1})
    name = draw.choice(names)
    file = draw.choice([path for path in files if path.name == name])
    others = [path for path in files if path.suffix == file.suffix and path != file]
    done = f"{file.relative_to(base)} {damage(draw, file, others)}"
    command = _command(draw, base, file)
    before = _contents(base)
    status, said = _call(command)
    wrong = _judge(status, said, before, _contents(base))
    return f"{wrong}\n  {done}\n  sparing {' '.join(command)}\n{said}" if wrong else ""


def _command(draw: random.Random, base: Path, file: Path) -> list[str]:
    """A command that reads the damaged file."""
    runs = sorted([*base.glob("runs/*"), *base.glob("compare/*-seed*")])
    run = draw.choice([run for run in runs if run in file.parents] or runs)
    known = READERS.get(file.name, (*SCORE, *RESUME))
    if run.name == "search" and draw.random() < 0.5:
        known = SEARCHED
    names = {"base": base, "run": run, "text": base.parent / "text.txt"}
    command = [word.format(**names) for word in draw.choice(known).split()]
    # Its variants and settings hold spaces.
    return [*command, *VARIANT] if command[0] == "compare" else command


def _contents(base: Path) -> dict[str, bytes | str]:
    """Everything in the folder but locks, and the stamps of tokens, which are renewed."""
    return {
        str(path.relative_to(base)): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in base.rglob("*")
        if path.is_symlink()
        or (path.is_file() and not path.name.endswith((".lock", "verified.json")))
    }


def _judge(
    status: int, said: str, before: dict[str, bytes | str], after: dict[str, bytes | str]
) -> str:
    if status not in (0, 2):
        return f"exit status {status}"
    lines = said.strip().splitlines()
    if status == 2 and not (lines and lines[-1].startswith("sparing: ")):
        return "no line says why"
    # A command may have prepared the text before it met the damage.
    changed = [
        name
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name) and (name in before or not name.startswith("home"))
    ]
    return f"a refusal changed {', '.join(changed)}" if status == 2 and changed else ""


def _call(command: Sequence[str]) -> tuple[int, str]:
    """Exit status and all that was printed; 1 and the traceback for a bug, 124 for a hang."""
    with io.StringIO() as said, _limited(), contextlib.ExitStack() as redirected:
        redirected.enter_context(contextlib.redirect_stdout(said))
        redirected.enter_context(contextlib.redirect_stderr(said))
        try:
            return main(list(command)), said.getvalue()
        except HungError:
            return 124, "".join(traceback.format_exception(*sys.exc_info())[-6:])
        except (Exception, SystemExit):
            return 1, "".join(traceback.format_exception(*sys.exc_info())[-6:])


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    def hung(number: int, frame: object) -> None:
        raise HungError

    if signal.getitimer(signal.ITIMER_REAL)[0]:
        # A trial within a comparison.
        yield
        return
    for kind in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(kind, hung)
    signal.setitimer(signal.ITIMER_REAL, WAIT_S)
    signal.setitimer(signal.ITIMER_PROF, CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)
