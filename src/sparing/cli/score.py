"""`sparing score`: log-probabilities of sentences."""

from pathlib import Path
from typing import Annotated

import typer

from sparing.cli.complete import complete_runs
from sparing.cli.options import RUN, CheckpointName, Device, Json
from sparing.data.text import encode_text
from sparing.errors import UserError
from sparing.evaluation.score import TextScore, rank_texts, score_texts
from sparing.inputs import read_input
from sparing.runs.bundled import run_or_bundled
from sparing.runs.folder import is_run, load_model, pick_hardware
from sparing.terminal import print_json, print_line, print_text


def score(
    path: Annotated[
        Path | None, typer.Argument(metavar="RUN", help=RUN, autocompletion=complete_runs)
    ] = None,
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE", help="One sentence per line; - is standard input (the default)."
        ),
    ] = None,
    text: Annotated[list[str] | None, typer.Option(help="A sentence to score.")] = None,
    per_token: Annotated[
        bool, typer.Option("--per-token", help="Also the nats of every token.")
    ] = False,
    ranked: Annotated[
        bool, typer.Option("--rank", help="Sort by probability, most probable first.")
    ] = False,
    per_byte: Annotated[
        bool,
        typer.Option("--per-byte", help="Rank by bits per byte, for texts of different lengths."),
    ] = False,
    whole: Annotated[
        bool, typer.Option("--whole", help="Score the file as one text; print its name.")
    ] = False,
    checkpoint: CheckpointName = None,
    target: Device = "auto",
    as_json: Json = False,
) -> None:
    """Log-probability and bits per byte of sentences, each scored independently."""
    if text and (file is not None or whole):
        raise UserError("--text cannot be combined with FILE or --whole; leave them out")
    if per_byte and not ranked:
        raise UserError("--per-byte needs --rank")
    if path is not None and file is None and not is_run(path):
        if path.is_dir() or not (path.exists() or str(path) == "-"):
            raise UserError(f"{path} is neither a run nor a text file")
        path, file = None, path
    if text and file is not None:
        raise UserError("--text cannot be combined with FILE; leave it out")
    file = file or Path("-")
    # Opened first, so that a misspelled run does not wait for standard input.
    folder = run_or_bundled(path)
    hardware = pick_hardware(folder, target)
    sentences = _encode(text) if text else _read(file, whole=whole)
    model = load_model(folder, hardware, checkpoint)
    scores = score_texts(model, folder.vocab(), sentences, hardware)
    scores = rank_texts(scores, per_byte=per_byte) if ranked else scores
    if as_json:
        print_json({"scores": [item.to_json(per_token=per_token) for item in scores]})
        return
    for item in scores:
        shown = _name(file) if whole else item.text.decode("utf-8", errors="replace")
        _print_score(item, shown, per_token=per_token)


def _encode(texts: list[str]) -> list[bytes]:
    return [encode_text(text) for text in texts]


def _read(file: Path, *, whole: bool) -> list[bytes]:
    data = read_input(file)
    sentences = [data] if whole else data.splitlines()
    sentences = [sentence for sentence in sentences if sentence]
    if not sentences:
        raise UserError(f"there is nothing to score in {_name(file)}")
    return sentences


def _name(file: Path) -> str:
    return "standard input" if str(file) == "-" else str(file)


def _print_score(item: TextScore, text: str, *, per_token: bool) -> None:
    print_text(f"{-item.loss_nats:12.3f} nats  {item.bits_per_byte:7.4f} bits/byte  {text}\n")
    if per_token:
        for token, nats in item.per_token:
            shown = repr(token.decode("utf-8", errors="backslashreplace"))
            print_line(f"    {nats:8.4f} nats  {shown}")
