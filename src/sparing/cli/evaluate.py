"""`sparing evaluate`: the exact bits per byte of a run."""

from collections.abc import Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from sparing.cli.complete import complete_runs
from sparing.cli.options import (
    RUN,
    CheckpointName,
    Corpus,
    Device,
    Json,
    Settings,
    Source,
    check_conflicting_options,
    check_dependent_options,
    given_options,
    print_report,
)
from sparing.data.tokens import Tokens
from sparing.device import Hardware, Precision
from sparing.errors import UserError
from sparing.evaluation.cache import CacheConfig
from sparing.evaluation.context import context_curve
from sparing.evaluation.dynamic import DynamicConfig, Rule
from sparing.launch import current_launch
from sparing.runs.bundled import run_or_bundled
from sparing.runs.config import RunConfig, with_settings
from sparing.runs.evaluate import (
    WHOLE,
    Case,
    Reading,
    SplitName,
    evaluate_case,
    evaluation_precision,
    has_memory,
    text_to_score,
)
from sparing.runs.folder import RunFolder, pick_hardware, prepare_for_run
from sparing.runs.layout import Layout
from sparing.terminal import print_json, print_line
from sparing.training.distributed.init import init_world
from sparing.training.distributed.world import WorldConfig

NEEDS = {
    "--stride": ("--window",),
    "--cache-theta": ("--cache",),
    "--cache-lambda": ("--cache",),
    "--dynamic-rule": ("--dynamic",),
    "--dynamic-lr": ("--dynamic",),
    "--dynamic-decay": ("--dynamic",),
}
"""Options that need another one."""
CONFLICTS = {
    "--context": ("--window", "--memory", "--cache", "--dynamic"),
    "--window": ("--memory", "--cache", "--segment", "--dynamic"),
    "--dynamic": ("--memory", "--cache"),
}
"""Options, and the options that they would ignore."""
CURVE = Layout(
    columns={
        # 1 for 1-1
        "context": lambda row: "-".join(dict.fromkeys(row["context"].split("-"))),
        "bits/byte": lambda row: f"{row['bits_per_byte']:.4f}",
        "nats/token": lambda row: f"{row['nats_per_token']:.4f}",
        "tokens": lambda row: f"{row['count']:,}",
    },
    left=("context",),
)
"""The table of --context."""
OPTION_SETTINGS = {
    "--batch": "evaluate.batch",
    "--segment": "evaluate.segment",
    "--memory": ".memory",
}
"""Options that are short for the settings whose names end this way."""
NOT_OF_EXPORT = ("--memory", "--segment", "--cache", "--dynamic")
"""Options that change what is fixed in an exported model."""
SINGLE_PROCESS = ("--context", "--memory", "--cache", "--dynamic")
"""Options that do not work with several processes."""

Split = Annotated[SplitName, typer.Option(help="Split to score; all: the whole text.")]
Protocol = Annotated[
    Literal["bytes", "no-newlines"],
    typer.Option(help="All bytes, or without newlines as Transformer-XL does."),
]
Size = Annotated[int | None, typer.Option("--bytes", help="Score the first N bytes only.")]
Window = Annotated[
    int | None,
    typer.Option(help="Windows of N tokens from a fresh state, instead of carried streams."),
]
Memory = Annotated[
    str | None, typer.Option(help="Memory lengths to compare, e.g. 0,1000,5000; 0 is none.")
]
Context = Annotated[
    int | None, typer.Option(help="Loss as a function of context length, up to N tokens.")
]
Cache = Annotated[int | None, typer.Option(help="Add a continuous cache of the last N tokens.")]
CacheTheta = Annotated[float, typer.Option(help="Factor of the similarity in the cache.")]
Adapt = Annotated[
    bool, typer.Option("--dynamic", help="Also dynamic evaluation, reported separately.")
]
DynamicDecay = Annotated[
    float, typer.Option(help="Decay of --dynamic towards the trained weights, per step.")
]
PrecisionName = Annotated[
    Precision, typer.Option(help="Precision of matrix products; auto: as in training.")
]


def evaluate(
    call: typer.Context,
    path: Annotated[
        Path | None, typer.Argument(metavar="RUN", help=RUN, autocompletion=complete_runs)
    ] = None,
    split: Split = "valid",
    corpus: Corpus = None,
    protocol: Protocol = "bytes",
    size: Size = None,
    window: Window = None,
    stride: Annotated[int | None, typer.Option(help="Tokens scored per window.")] = None,
    batch: Annotated[int | None, typer.Option(help="Streams or windows read in parallel.")] = None,
    segment: Annotated[int | None, typer.Option(help="Tokens read at a time.")] = None,
    memory: Memory = None,
    context: Context = None,
    cache: Cache = None,
    cache_theta: CacheTheta = CacheConfig().theta,
    cache_lambda: Annotated[float, typer.Option(help="Weight of the cache.")] = CacheConfig().share,
    adapt: Adapt = False,
    dynamic_rule: Annotated[Rule, typer.Option(help="Update rule of --dynamic.")] = "rms",
    dynamic_lr: Annotated[float | None, typer.Option(help="Learning rate of --dynamic.")] = None,
    dynamic_decay: DynamicDecay = DynamicConfig().decay,
    settings: Settings = None,
    checkpoint: CheckpointName = None,
    source: Source = None,
    target: Device = "auto",
    precision: PrecisionName = "auto",
    as_json: Json = False,
) -> None:
    """Score a split exactly: every byte once, each predicted from the bytes before it."""
    settings = settings or []
    _check_options(given_options(call), settings)
    folder = _open_run(path, protocol if "--protocol" in given_options(call) else None)
    _check_export(folder, given_options(call))
    run = _apply_settings(folder.config(), settings, batch, segment)
    # Resolved once: a run in training may get its first `best` during the evaluation.
    chosen, hardware = folder.checkpoint(checkpoint), _hardware(folder, target, precision)
    tokens = prepare_for_run(folder, text_to_score(folder.config(), corpus), source)
    how = _dynamic(dynamic_rule, dynamic_lr, dynamic_decay, segment) if adapt else None
    case = Case(
        folder=folder,
        run=run,
        checkpoint=chosen,
        hardware=hardware,
        tokens=tokens,
        split=split,
        size=size,
        drop_newlines=protocol == "no-newlines" and tokens.config.newlines,
        trained_on=_trained_on(folder, how) if corpus is not None else None,
    )
    reading = Reading(window=window, stride=stride, cache=_cache(cache, cache_theta, cache_lambda))
    if context is not None:
        _print_curve(_context(case, context), as_json=as_json)
    elif memory is not None:
        _sweep(case, reading, _lengths(memory), as_json=as_json)
    else:
        # The folder of the package is not the user's.
        usual = size is None and not settings and corpus is None and split != WHOLE
        kept = usual and path is not None
        _score(case, reading, how, kept=kept, as_json=as_json)


def _check_options(options: Set[str], settings: Sequence[str]) -> None:
    check_dependent_options(options, NEEDS)
    check_conflicting_options(options, CONFLICTS)
    single = [option for option in SINGLE_PROCESS if option in options]
    if current_launch().size > 1 and single:
        raise UserError(f"{single[0]} runs in one process only; start it without torchrun")
    set_names = {setting.partition("=")[0].strip() for setting in settings}
    for option, setting in OPTION_SETTINGS.items():
        for name in set_names if option in options else ():
            if name.endswith(setting):
                raise UserError(f"{option} and --set {name} are the same; leave one of them out")


def _check_export(folder: RunFolder, options: Set[str]) -> None:
    fixed = [option for option in NOT_OF_EXPORT if option in options]
    if folder.is_export() and fixed:
        raise UserError(
            f"{folder.path} is an ONNX export, for which {fixed[0]} is not possible; name the run "
            "that it was made from"
        )


def _apply_settings(
    stored: RunConfig, settings: Sequence[str], batch: int | None, segment: int | None
) -> RunConfig:
    reading = {"evaluate.batch": batch, "evaluate.segment": segment}
    options = [f"{name}={value}" for name, value in reading.items() if value is not None]
    run = with_settings(stored, [*settings, *options])
    for setting in settings:
        if not setting.strip().startswith(("model.", "evaluate.")):
            raise UserError(
                f"--set {setting} has no effect here; only settings of model and evaluate do"
            )
    return run


def _open_run(path: Path | None, protocol: str | None) -> RunFolder:
    """Open the run; refuse a protocol that it cannot be evaluated with."""
    folder = run_or_bundled(path)
    if protocol == "bytes" and not folder.config().data.newlines:
        raise UserError("this run was trained without newlines; use --protocol no-newlines")
    return folder


def _hardware(folder: RunFolder, target: str, precision: Precision) -> Hardware:
    chosen = evaluation_precision(folder.config(), precision, exported=folder.is_export())
    return pick_hardware(folder, target, chosen)


def _cache(window: int | None, theta: float, share: float) -> CacheConfig | None:
    return None if window is None else CacheConfig(window=window, theta=theta, share=share)


def _dynamic(rule: Rule, lr: float | None, decay: float, segment: int | None) -> DynamicConfig:
    how = DynamicConfig(rule=rule, lr=lr, decay=decay)
    return how if segment is None else replace(how, segment=segment)


def _trained_on(folder: RunFolder, how: DynamicConfig | None) -> Tokens | None:
    """The text of the training, where dynamic evaluation of another one needs it."""
    needed = how is not None and how.rule == "rms"
    return prepare_for_run(folder, folder.config().data, None) if needed else None


def _score(
    case: Case, reading: Reading, how: DynamicConfig | None, *, kept: bool, as_json: bool
) -> None:
    with init_world(current_launch(), case.hardware.device, WorldConfig()) as world:
        found, report = evaluate_case(replace(case, world=world), reading, how)
    if current_launch().rank:
        return
    # Shown first: a file that cannot be written must not cost the figures of a long evaluation.
    print_report(report, as_json=as_json)
    if kept:
        case.folder.note_results(found)


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


def _print_curve(curve: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(curve)
        return
    print_line(CURVE.text([{"context": name, **point} for name, point in curve.items()]))


def _lengths(memory: str) -> list[int]:
    try:
        return [int(word) for word in memory.split(",")]
    except ValueError:
        raise UserError(f"--memory takes numbers such as 0,1000,5000, not {memory!r}") from None


def _sweep(case: Case, reading: Reading, lengths: Sequence[int], *, as_json: bool) -> None:
    if not has_memory(case.run):
        raise UserError(f"this {case.run.family} has no memory; leave --memory out")
    rows = []
    for length in lengths:
        now = case.with_memory(length)
        segment = now.run.evaluate.segment
        result = reading.evaluate(now, now.model())
        lossless = case.tokens.vocab.lossless
        row = {"memory": length, "segment": segment, **result.to_json(), "lossless": lossless}
        rows.append(row)
        if not as_json:
            print_line(
                f"memory {length:>6,}  segment {segment:>5,}"
                f"  {result.bits_per_byte:.4f} bits per byte  {result.elapsed_s:.1f} s"
            )
    if as_json:
        print_json({"memory": rows})
