"""`sparing score`: how likely a run finds sentences."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from sparing import device
from sparing.cli.options import CheckpointName, Device, Json, say
from sparing.errors import UserError
from sparing.evaluate.score import Score, rank
from sparing.evaluate.score import score as score_texts
from sparing.runs.bundled import run_or_bundled
from sparing.runs.folder import is_run, load_model


def score(
    path: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="The package's own model if left out.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE", help="One sentence a line; - is standard input (the default)."
        ),
    ] = None,
    text: Annotated[list[str] | None, typer.Option(help="A sentence given here.")] = None,
    per_token: Annotated[bool, typer.Option("--per-token", help="Every token's nats.")] = False,
    ranked: Annotated[bool, typer.Option("--rank", help="Most probable first.")] = False,
    per_byte: Annotated[
        bool, typer.Option("--per-byte", help="Rank by bits per byte, for unequal lengths.")
    ] = False,
    whole: Annotated[bool, typer.Option("--whole", help="Take the file as one text.")] = False,
    checkpoint: CheckpointName = None,
    target: Device = "auto",
    as_json: Json = False,
) -> None:
    """Log-probability and bits per byte of each sentence, each scored alone."""
    if text and (file is not None or whole):
        raise UserError("--text is scored without a file; leave FILE and --whole out")
    if per_byte and not ranked:
        raise UserError("--per-byte goes with --rank")
    if path is not None and file is None and not is_run(path):
        if path.is_dir() or not (path.exists() or str(path) == "-"):
            raise UserError(f"there is no run and no text in {path}")
        path, file = None, path
    if text and file is not None:
        raise UserError("--text is scored without a file; leave FILE out")
    # First of all: a misspelt run must not wait for text.
    folder, hardware = run_or_bundled(path), device.pick(target, "float32")
    sentences = _given(text) if text else _read(file or Path("-"), whole=whole)
    model = load_model(folder, hardware, checkpoint)
    scores = score_texts(model, folder.vocab(), sentences, hardware)
    for item in rank(scores, per_byte=per_byte) if ranked else scores:
        if as_json:
            typer.echo(json.dumps(item.to_json(per_token=per_token)))
        else:
            _show(item, per_token=per_token)


def _given(texts: list[str]) -> list[bytes]:
    return [text.encode("utf-8", errors="surrogateescape") for text in texts]


def _read(file: Path, *, whole: bool) -> list[bytes]:
    data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    sentences = [data] if whole else data.splitlines()
    sentences = [sentence for sentence in sentences if sentence]
    if not sentences:
        raise UserError(
            f"there is nothing to score in {'standard input' if str(file) == '-' else file}"
        )
    return sentences


def _show(item: Score, *, per_token: bool) -> None:
    text = item.text.decode("utf-8", errors="replace")
    say(f"{-item.loss_nats:12.3f} nats  {item.bits_per_byte:7.4f} bits/byte  {text}\n")
    if per_token:
        for token, nats in item.per_token:
            shown = repr(token.decode("utf-8", errors="backslashreplace"))
            typer.echo(f"    {nats:8.4f} nats  {shown}")
