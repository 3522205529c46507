"""`sparing evaluate`: exact bits per byte of a run."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from sparing import device
from sparing.cli.options import CheckpointName, Device, Json, Settings, Source, show
from sparing.data.tokens import Split, Tokens, first_bytes, without_newlines
from sparing.device import Hardware, Precision
from sparing.errors import UserError
from sparing.evaluate.cache import CacheConfig, cached
from sparing.evaluate.context import context_curve
from sparing.evaluate.loss import Evaluation, carried, windowed
from sparing.models.api import LanguageModel
from sparing.runs.config import RunConfig, with_settings
from sparing.runs.folder import RunFolder, load_model, open_run, prepare_for_run


def evaluate(
    path: Annotated[Path, typer.Argument(metavar="RUN")],
    split: Annotated[Literal["train", "valid", "test"], typer.Option(help="Part to score.")] = (
        "valid"
    ),
    protocol: Annotated[
        Literal["bytes", "no-newlines"],
        typer.Option(help="All bytes, or newlines taken out as Transformer-XL does."),
    ] = "bytes",
    size: Annotated[int | None, typer.Option("--bytes", help="Only the first N bytes.")] = None,
    window: Annotated[
        int | None, typer.Option(help="Fresh windows of N tokens instead of carried streams.")
    ] = None,
    stride: Annotated[int | None, typer.Option(help="Tokens scored per window.")] = None,
    batch: Annotated[int | None, typer.Option(help="Streams or windows side by side.")] = None,
    segment: Annotated[int | None, typer.Option(help="Tokens read at a time.")] = None,
    memory: Annotated[
        str | None, typer.Option(help="Memory lengths to try, e.g. 0,1000,5000; 0 is off.")
    ] = None,
    context: Annotated[
        int | None, typer.Option(help="Loss against available context, up to N tokens.")
    ] = None,
    cache: Annotated[
        int | None, typer.Option(help="Mix in a continuous cache of the last N tokens.")
    ] = None,
    cache_theta: Annotated[
        float, typer.Option(help="How sharply similarity tells in the cache.")
    ] = CacheConfig().theta,
    cache_lambda: Annotated[
        float, typer.Option(help="Probability given to the cache.")
    ] = CacheConfig().share,
    settings: Settings = None,
    checkpoint: CheckpointName = None,
    source: Source = None,
    target: Device = "auto",
    precision: Annotated[
        Precision, typer.Option(help="Of matrix products; auto is what the run trained in.")
    ] = "auto",
    as_json: Json = False,
) -> None:
    """Score a split exactly: every byte once, each from the bytes before it."""
    folder = open_run(path)
    stored = folder.config()
    hardware = device.pick(target, stored.train.precision if precision == "auto" else precision)
    run = with_settings(stored, settings or [])
    run = replace(run, evaluate=_reading(run, batch, segment))
    text = _text(prepare_for_run(folder, stored.data, source), split, protocol, size)
    if context is not None:
        report = _context(_load(folder, hardware, checkpoint, run), text, hardware, context)
        show(report, as_json=as_json)
        return
    # A model trained without newlines has no other way of being measured.
    ask = Asking(protocol if stored.data.newlines else "no-newlines", window, stride)
    if cache is not None:
        ask.use(CacheConfig(window=cache, theta=cache_theta, share=cache_lambda))
    if memory is not None:
        _sweep(folder, hardware, (run, checkpoint), text, ask, memory, as_json=as_json)
        return
    result = ask.answer(_load(folder, hardware, checkpoint, run), text, hardware, run)
    name = folder.checkpoint(checkpoint)
    report = {
        "split": split,
        **result.to_json(),
        "precision": hardware.precision,
        "checkpoint": name,
        "step": folder.step(name),
    }
    if size is None and not settings:
        folder.note_results({_label(split, ask): report})
    show(report, as_json=as_json)


class Asking:
    """How the split is to be read."""

    def __init__(self, protocol: str, window: int | None, stride: int | None) -> None:
        if stride is not None and window is None:
            raise UserError("--stride needs --window")
        self.protocol, self.window = protocol, window
        self.cache: CacheConfig | None = None
        self.stride = stride if stride is not None or window is None else max(1, window // 2)

    def use(self, cache: CacheConfig) -> None:
        """Put a cache beside the model."""
        if self.window is not None:
            raise UserError("--cache remembers carried streams; leave --window out")
        self.cache = cache

    def answer(
        self, model: LanguageModel, text: Split, hardware: Hardware, run: RunConfig
    ) -> Evaluation:
        """Score `text`."""
        batch = run.evaluate.batch
        if self.cache is not None:
            return cached(
                model,
                text,
                hardware,
                self.cache,
                batch=batch,
                segment=run.evaluate.segment,
                protocol=self.protocol,
                progress=True,
            )
        if self.window is None or self.stride is None:
            return carried(
                model,
                text,
                hardware,
                batch=batch,
                segment=run.evaluate.segment,
                protocol=self.protocol,
                progress=True,
            )
        return windowed(
            model,
            text,
            hardware,
            window=self.window,
            stride=self.stride,
            batch=batch,
            protocol=self.protocol,
            progress=True,
        )


def _reading(run: RunConfig, batch: int | None, segment: int | None) -> Any:
    e = run.evaluate
    return replace(e, batch=batch or e.batch, segment=segment or e.segment)


def _text(tokens: Tokens, name: str, protocol: str, size: int | None) -> Split:
    split = tokens.split(name)
    if size is not None:
        split = first_bytes(split, size, tokens.vocab)
    return without_newlines(split, tokens.vocab) if protocol == "no-newlines" else split


def _load(
    folder: RunFolder, hardware: Hardware, checkpoint: str | None, run: RunConfig
) -> LanguageModel:
    return load_model(folder, hardware, checkpoint, run)


def _sweep(
    folder: RunFolder,
    hardware: Hardware,
    what: tuple[RunConfig, str | None],
    text: Split,
    ask: Asking,
    memory: str,
    *,
    as_json: bool,
) -> None:
    run, checkpoint = what
    rows = []
    for length in _lengths(memory):
        changed = with_settings(run, [f"model.memory={length}"])
        result = ask.answer(_load(folder, hardware, checkpoint, changed), text, hardware, changed)
        rows.append({"memory": length, **result.to_json()})
        if not as_json:
            typer.echo(
                f"memory {length:>6,}  {result.bits_per_byte:.4f} bits per byte"
                f"  {result.elapsed_s:.1f} s"
            )
    if as_json:
        typer.echo(json.dumps({"memory": rows}))


def _lengths(memory: str) -> list[int]:
    try:
        return [int(word) for word in memory.split(",")]
    except ValueError:
        raise UserError(f"--memory takes numbers such as 0,1000,5000, not {memory!r}") from None


def _context(model: LanguageModel, text: Split, hardware: Hardware, length: int) -> dict[str, Any]:
    points = context_curve(model, text, hardware, length=length)
    return {
        f"{point.low}-{point.high}": {
            "bits_per_byte": point.bits_per_byte,
            "nats_per_token": point.nats_per_token,
            "count": point.count,
        }
        for point in points
    }


def _label(split: str, ask: Asking) -> str:
    words = [split]
    if ask.protocol != "bytes":
        words.append(ask.protocol)
    if ask.window is not None:
        words.append(f"window {ask.window} stride {ask.stride}")
    if (c := ask.cache) is not None:
        words.append(f"cache {c.window} theta {c.theta:g} lambda {c.share:g}")
    return ", ".join(words)
