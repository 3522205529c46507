"""`sparing evaluate`: exact bits per byte of a run."""

import json
from collections.abc import Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from sparing import device
from sparing.cli.options import (
    CheckpointName,
    Device,
    Json,
    Settings,
    Source,
    given,
    refuse_apart,
    refuse_strays,
    show,
)
from sparing.device import Hardware, Precision
from sparing.errors import UserError
from sparing.evaluate.cache import CacheConfig
from sparing.evaluate.context import context_curve
from sparing.evaluate.dynamic import DynamicConfig, Rule
from sparing.launch import launch
from sparing.runs.config import RunConfig, with_settings
from sparing.runs.evaluate import Case, Reading, has_memory, measure
from sparing.runs.folder import RunFolder, open_run, prepare_for_run
from sparing.train.distributed.ddp import WorldConfig
from sparing.train.distributed.init import init_world

NEEDS = {
    "--stride": ("--window",),
    "--cache-theta": ("--cache",),
    "--cache-lambda": ("--cache",),
    "--dynamic-rule": ("--dynamic",),
    "--dynamic-lr": ("--dynamic",),
    "--dynamic-decay": ("--dynamic",),
}
"""Options that mean nothing without another."""
APART = {
    "--context": ("--window", "--memory", "--cache", "--dynamic"),
    "--window": ("--memory", "--cache", "--segment", "--dynamic"),
    "--dynamic": ("--memory", "--cache"),
}
"""Ways of reading, and what would be lost on them."""
TWICE = {"--batch": "evaluate.batch", "--segment": "evaluate.segment", "--memory": ".memory"}
"""Options that stand for the settings whose names end so."""
ALONE = ("--context", "--memory", "--cache", "--dynamic")
"""Ways of reading that are not dealt out to several processes."""


def evaluate(
    call: typer.Context,
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
    adapting: Annotated[
        bool, typer.Option("--dynamic", help="Also learn from what was scored: its own figures.")
    ] = False,
    dynamic_rule: Annotated[Rule, typer.Option(help="How --dynamic moves the weights.")] = "rms",
    dynamic_lr: Annotated[float | None, typer.Option(help="Its learning rate.")] = None,
    dynamic_decay: Annotated[
        float, typer.Option(help="Its share of the way back to the trained weights, per step.")
    ] = DynamicConfig().decay,
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
    settings = settings or []
    _refuse_contradictions(given(call), settings)
    folder = _opened(path, protocol if "--protocol" in given(call) else None)
    case = Case(
        folder=folder,
        run=_changed(folder.config(), settings, batch, segment),
        # Once and for all: a run that trains may get its first `best` while it is read.
        checkpoint=folder.checkpoint(checkpoint),
        hardware=_hardware(folder, target, precision),
        tokens=prepare_for_run(folder, folder.config().data, source),
        split=split,
        protocol=protocol,
        size=size,
    )
    reading = _reading(case, window, stride, _cache(cache, cache_theta, cache_lambda))
    if context is not None:
        show(_context(case, context), as_json=as_json)
    elif memory is not None:
        _sweep(case, reading, _lengths(memory), as_json=as_json)
    else:
        how = _dynamic(dynamic_rule, dynamic_lr, dynamic_decay, segment) if adapting else None
        _score(case, reading, how, kept=size is None and not settings, as_json=as_json)


def _refuse_contradictions(options: Set[str], settings: Sequence[str]) -> None:
    refuse_strays(options, NEEDS)
    refuse_apart(options, APART)
    if launch().size > 1 and (strays := [option for option in ALONE if option in options]):
        raise UserError(f"{strays[0]} is for one process; run it without torchrun")
    named = {setting.partition("=")[0].strip() for setting in settings}
    for option, setting in TWICE.items():
        for name in named if option in options else ():
            if name.endswith(setting):
                raise UserError(f"{option} and --set {name} say the same; leave one of them out")


def _changed(
    stored: RunConfig, settings: Sequence[str], batch: int | None, segment: int | None
) -> RunConfig:
    reading = {"evaluate.batch": batch, "evaluate.segment": segment}
    options = [f"{name}={value}" for name, value in reading.items() if value is not None]
    run = with_settings(stored, [*settings, *options])
    for setting in settings:
        if not setting.strip().startswith(("model.", "evaluate.")):
            raise UserError(
                f"--set {setting} would change nothing here: "
                "evaluate takes settings of model and evaluate"
            )
    return run


def _opened(path: Path, protocol: str | None) -> RunFolder:
    """The run, if it can be measured by the protocol that was asked for."""
    folder = open_run(path)
    if protocol == "bytes" and not folder.config().data.newlines:
        raise UserError("the run never saw a newline; it can be measured as no-newlines only")
    return folder


def _hardware(folder: RunFolder, target: str, precision: Precision) -> Hardware:
    trained_in = folder.config().train.precision
    return device.pick(target, trained_in if precision == "auto" else precision)


def _cache(window: int | None, theta: float, share: float) -> CacheConfig | None:
    return None if window is None else CacheConfig(window=window, theta=theta, share=share)


def _reading(
    case: Case, window: int | None, stride: int | None, cache: CacheConfig | None
) -> Reading:
    # A model trained without newlines has no other way of being measured.
    protocol = case.protocol if case.folder.config().data.newlines else "no-newlines"
    return Reading(protocol=protocol, window=window, stride=stride, cache=cache)


def _dynamic(rule: Rule, lr: float | None, decay: float, segment: int | None) -> DynamicConfig:
    how = DynamicConfig(rule=rule, lr=lr, decay=decay)
    return how if segment is None else replace(how, segment=segment)


def _score(
    case: Case, reading: Reading, how: DynamicConfig | None, *, kept: bool, as_json: bool
) -> None:
    with init_world(launch(), case.hardware.device, WorldConfig()) as world:
        found, report = measure(replace(case, world=world), reading, how)
    if launch().rank:
        return
    if kept:
        case.folder.note_results(found)
    show(report, as_json=as_json)


def _context(case: Case, length: int) -> dict[str, Any]:
    e = case.run.evaluate
    points = context_curve(
        case.model(),
        case.text(),
        case.hardware,
        length=length,
        batch=e.batch,
        segment=e.segment,
    )
    return {
        f"{point.low}-{point.high}": {
            "bits_per_byte": point.bits_per_byte,
            "nats_per_token": point.nats_per_token,
            "count": point.count,
        }
        for point in points
    }


def _lengths(memory: str) -> list[int]:
    try:
        return [int(word) for word in memory.split(",")]
    except ValueError:
        raise UserError(f"--memory takes numbers such as 0,1000,5000, not {memory!r}") from None


def _sweep(case: Case, reading: Reading, lengths: Sequence[int], *, as_json: bool) -> None:
    if not has_memory(case.run):
        raise UserError(f"this {case.run.family} has no memory whose length could be varied")
    rows = []
    for length in lengths:
        now = case.remembering(length)
        segment = now.run.evaluate.segment
        result = reading.answer(now, now.model())
        rows.append({"memory": length, "segment": segment, **result.to_json()})
        if not as_json:
            typer.echo(
                f"memory {length:>6,}  segment {segment:>5,}"
                f"  {result.bits_per_byte:.4f} bits per byte  {result.elapsed_s:.1f} s"
            )
    if as_json:
        typer.echo(json.dumps({"memory": rows}))
