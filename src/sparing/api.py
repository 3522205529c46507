"""`sparing.load`, `train` and `evaluate`: the commands of the same names, from Python."""

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal

from sparing.data.corpora import SPLITS
from sparing.data.text import encode_text
from sparing.data.tokens import drop_newlines, split_from_text
from sparing.errors import UserError, unknown_name
from sparing.evaluation.loss import Evaluation, evaluate_streams
from sparing.files import expand_home
from sparing.lm import LM, open_lm
from sparing.runs.bundled import run_or_bundled
from sparing.runs.evaluate import Case, Reading
from sparing.runs.folder import pick_hardware, prepare_for_run
from sparing.runs.init import open_init
from sparing.runs.start import (
    INIT_AND_RESUME,
    absolute_corpus,
    apply_settings,
    assignments,
    default_run_path,
    load_start,
)
from sparing.runs.train import TrainOptions
from sparing.runs.train import train as train_run

PathOrName = str | PathLike[str]
COMMAND = re.compile(r"`sparing (train|evaluate) [^`]*`")
OPTION = re.compile(r"(?<![\w-])--([a-z][a-z-]*)")


def load(
    run: PathOrName | None = None, *, checkpoint: str | None = None, device: str = "auto"
) -> LM:
    """Load the model of a run folder; by default, the model that comes with the package.

    `checkpoint` is `best` (the default), `last` or `previous`.
    """
    with _errors_without_options():
        folder = run_or_bundled(None if run is None else expand_home(Path(run)))
        return open_lm(folder, pick_hardware(folder, device), checkpoint)


def train(  # noqa: PLR0913  all but one are keyword-only
    recipe: PathOrName = "",
    *,
    data: PathOrName | None = None,
    out: PathOrName | None = None,
    init: PathOrName | None = None,
    minutes: float | None = None,
    resume: bool = False,
    device: str = "auto",
    progress: bool = True,
    **settings: Any,
) -> LM:
    """Train a recipe, named or in a JSON file, and return the model with its best weights.

    `data` is the name of a corpus, or a text file or folder; `out` is the run folder, by default
    one below `runs/`; settings go by their full names, as in `**{"model.dim": 64}`. `init` is a
    run to start from, or `"bundled"`: the package's model. With `resume`, the run in `out` is
    continued. Ctrl-C saves a checkpoint and raises KeyboardInterrupt.
    """
    with _errors_without_options():
        if out is not None and not fspath(out).strip():
            raise UserError("--out is empty; name a folder to write to")
        if init is not None and resume:
            raise UserError(INIT_AND_RESUME)
        name = fspath(recipe)
        folder = name or ("finetune" if init else "")
        path = default_run_path(folder, resume=resume) if out is None else expand_home(Path(out))
        corpus = None if data is None else fspath(data)
        start = None if init is None else open_init(fspath(init))
        run = load_start(name, path, start, resume=resume, corpus=corpus)
        run = apply_settings(run, assignments(settings), minutes, corpus)
        options = TrainOptions(device=device, resume=resume, progress=progress, init=start)
        stopped = train_run(run, path, options)
    if stopped == signal.SIGINT:
        raise KeyboardInterrupt(f"stopped; sparing.train(out={str(path)!r}, resume=True) continues")
    if stopped:
        raise SystemExit(128 + stopped)
    return load(path, device=device)


def evaluate(  # noqa: PLR0913  all but one are keyword-only
    model: LM | PathOrName | None = None,
    *,
    text: str | bytes | None = None,
    data: PathOrName | None = None,
    split: Literal["train", "valid", "test"] = "valid",
    size: int | None = None,
    device: str = "auto",
) -> Evaluation:
    """Score a text exactly: every byte once, each predicted from the bytes before it.

    By default it is a split of the text that the model was trained on, or its first `size` bytes;
    `data` names another corpus, file or folder, and `text` is scored as it is.
    """
    lm = model if isinstance(model, LM) else load(model, device=device)
    with _errors_without_options():
        if text is None:
            return _evaluate_split(lm, data, split, size)
        if data is not None or size is not None:
            raise UserError("`text` is scored as it is; leave `data` and `size` out")
        return _evaluate_text(lm, text if isinstance(text, bytes) else encode_text(text))


def _evaluate_text(lm: LM, text: bytes) -> Evaluation:
    whole, protocol = split_from_text(text, lm.vocab), _protocol(lm)
    scored = drop_newlines(whole, lm.vocab) if protocol == "no-newlines" else whole
    segment = lm.config.evaluate.segment
    return evaluate_streams(
        lm.model, scored, lm.hardware, batch=1, segment=segment, protocol=protocol
    )


def _evaluate_split(lm: LM, data: PathOrName | None, split: str, size: int | None) -> Evaluation:
    if lm.folder is None:
        raise UserError("this model has no run folder; give `text`")
    if split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    config = lm.config.data
    if data is not None:
        config = replace(config, corpus=absolute_corpus(fspath(data)))
    case = Case(
        folder=lm.folder,
        run=lm.config,
        hardware=lm.hardware,
        checkpoint=None,
        tokens=prepare_for_run(lm.folder, config, None),
        split=split,
        # The tokens of a model without newlines have none already.
        protocol="bytes",
        size=size,
    )
    return Reading(protocol=_protocol(lm)).evaluate(case, lm.model)


def _protocol(lm: LM) -> str:
    return "bytes" if lm.config.data.newlines else "no-newlines"


@contextmanager
def _errors_without_options() -> Iterator[None]:
    """Make errors speak of arguments in place of the options of the command line."""
    try:
        yield
    except UserError as problem:
        message = COMMAND.sub(r"`sparing.\1`", str(problem))
        # There is no argument for a copy of a corpus.
        message = message.replace("--from PATH or the variable", "the variable")
        message = message.replace("add --resume", "pass resume=True")
        message = message.replace("--resume", "resume=True").replace("--set ", "")
        message = OPTION.sub(lambda found: f"`{found[1].replace('-', '_')}`", message)
        raise type(problem)(message) from None
