"""`sparing.load`, `train` and `evaluate`: the commands of the same names, from Python."""

import signal
from collections.abc import Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any, get_args

import torch

from sparing.arguments import check_arguments
from sparing.data.text import encode_text
from sparing.data.tokens import split_from_text
from sparing.device import Hardware, Precision, pick
from sparing.errors import UserError, unknown_name
from sparing.evaluation.loss import Evaluation, evaluate_streams
from sparing.files import expand_home
from sparing.inputs import check_new_path
from sparing.lm import LM, open_lm
from sparing.runs.bundled import run_or_bundled
from sparing.runs.evaluate import (
    Case,
    Reading,
    SplitName,
    evaluation_precision,
    text_to_score,
)
from sparing.runs.finetune import open_init
from sparing.runs.folder import pick_hardware, prepare_for_run
from sparing.runs.start import (
    apply_settings,
    assignments,
    check_start,
    default_run_path,
    load_start,
)
from sparing.runs.train import TrainOptions
from sparing.runs.train import train as train_run

PathOrName = str | PathLike[str]
Device = str | torch.device


def load(
    run: PathOrName | None = None, *, checkpoint: str | None = None, device: Device = "auto"
) -> LM:
    """Load the model of a run folder; by default, the model that comes with the package.

    `checkpoint` is `best` (the default), `last` or `previous`.
    """
    check_arguments(load, locals())
    folder = run_or_bundled(None if run is None else expand_home(Path(run)))
    return open_lm(folder, pick_hardware(folder, str(device)), checkpoint)


def train(  # noqa: PLR0913  all but one are keyword-only
    recipe: PathOrName = "",
    *,
    data: PathOrName | None = None,
    out: PathOrName | None = None,
    init: PathOrName | None = None,
    minutes: float | None = None,
    resume: bool = False,
    checkpoint: str | None = None,
    cut_journal: bool = False,
    device: Device = "auto",
    progress: bool = True,
    **settings: Any,
) -> LM:
    """Train a recipe, named or in a JSON file, and return the model with its best weights.

    `data` is the name of a corpus, or a text file or folder; `out` is the run folder, by default
    one below `runs/`; settings go by their full names, as in `**{"model.dim": 64}`. `init` is a
    run to start from, or `"bundled"`: the package's model. With `resume`, the run in `out` is
    continued. `checkpoint` is what to continue from (`last` by default), or to start from with
    `init` (`best`); `cut_journal` continues without the unreadable lines of a damaged journal.
    Ctrl-C saves a checkpoint and raises KeyboardInterrupt; a second one raises it at once.
    """
    check_arguments(train, locals())
    if out is not None:
        check_new_path(fspath(out))
    source, name = None if init is None else fspath(init), fspath(recipe)
    check_start(source, checkpoint, resume=resume, cut_journal=cut_journal)
    folder = name or ("finetune" if init else "")
    path = default_run_path(folder, resume=resume) if out is None else expand_home(Path(out))
    corpus = None if data is None else fspath(data)
    start = None if source is None else open_init(source, checkpoint)
    run = load_start(name, path, start, resume=resume, corpus=corpus)
    run = apply_settings(run, assignments(settings), minutes, corpus)
    options = TrainOptions(
        device=str(device),
        resume=resume,
        checkpoint=checkpoint or "last",
        cut_journal=cut_journal,
        progress=progress,
        init=start,
    )
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
    split: SplitName | None = None,
    size: int | None = None,
    checkpoint: str | None = None,
    device: Device = "auto",
    precision: Precision = "auto",
) -> Evaluation:
    """Score a text exactly: every byte once, each predicted from the bytes before it.

    By default it is the valid split of the text that the model was trained on, or its first `size`
    bytes; `data` names another corpus, file or folder, of which the split `all` is the whole, and
    `text` is scored as it is. Matrix products have the `precision` of the training; that of
    `generate` and `score` is float32.
    """
    check_arguments(evaluate, locals())
    if isinstance(model, LM):
        given = {"checkpoint": checkpoint is not None, "device": str(device) != "auto"}
        _refuse("this model is loaded already", given)
    if precision not in get_args(Precision):
        raise unknown_name("precision", precision, get_args(Precision))
    if text is not None:
        given = {name: value is not None for name, value in (("data", data), ("split", split))}
        _refuse("`text` is scored as it is", given | {"size": size is not None})
    lm = model if isinstance(model, LM) else load(model, checkpoint=checkpoint, device=device)
    hardware = _evaluation_hardware(lm, precision)
    if text is None:
        return _evaluate_split(lm, hardware, data, split or "valid", size)
    return _evaluate_text(lm, hardware, text if isinstance(text, bytes) else encode_text(text))


def _refuse(why: str, given: Mapping[str, bool]) -> None:
    """Refuse arguments that would have no effect."""
    if names := [f"`{name}`" for name, is_given in given.items() if is_given]:
        raise UserError(f"{why}; leave {', '.join(names)} out")


def _evaluation_hardware(lm: LM, precision: Precision) -> Hardware:
    exported = lm.folder is not None and lm.folder.is_export()
    chosen = evaluation_precision(lm.config, precision, exported=exported)
    target = str(lm.hardware.device)
    return pick(target, chosen) if lm.folder is None else pick_hardware(lm.folder, target, chosen)


def _evaluate_text(lm: LM, hardware: Hardware, text: bytes) -> Evaluation:
    data, segment = lm.config.data, lm.config.evaluate.segment
    split = split_from_text(text if data.newlines else text.replace(b"\n", b""), lm.vocab)
    return evaluate_streams(
        lm.model, split, hardware, batch=1, segment=segment, protocol=data.protocol
    )


def _evaluate_split(
    lm: LM, hardware: Hardware, data: PathOrName | None, split: str, size: int | None
) -> Evaluation:
    if lm.folder is None:
        raise UserError("this model has no run folder; give `text`")
    if split not in get_args(SplitName):
        raise unknown_name("split", split, get_args(SplitName))
    corpus = None if data is None else fspath(data)
    case = Case(
        folder=lm.folder,
        run=lm.config,
        hardware=hardware,
        checkpoint=None,
        tokens=prepare_for_run(lm.folder, text_to_score(lm.config, corpus), None),
        split=split,
        size=size,
    )
    return Reading().evaluate(case, lm.model)
