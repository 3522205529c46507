"""`sparing evaluate`: exact bits per byte of a run."""

import json
from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace
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
from sparing.data.tokens import Split, Tokens, first_bytes, without_newlines
from sparing.device import Hardware, Precision
from sparing.errors import UserError
from sparing.evaluate.cache import CacheConfig, cached
from sparing.evaluate.context import context_curve
from sparing.evaluate.dynamic import DynamicConfig, Rule, dynamic
from sparing.evaluate.loss import Evaluation, carried, windowed
from sparing.launch import launch
from sparing.models.api import LanguageModel
from sparing.runs.build import build_model
from sparing.runs.config import RunConfig, with_settings
from sparing.runs.folder import RunFolder, load_model, open_run, prepare_for_run
from sparing.train.distributed import Joining, Ranks, together

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
TWICE = {"--batch": "evaluate.batch", "--segment": "evaluate.segment", "--memory": "model.memory"}
"""Options that stand for a setting."""
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
    folder = open_run(path)
    stored = folder.config()
    if "--protocol" in given(call) and protocol == "bytes" and not stored.data.newlines:
        raise UserError("the run never saw a newline; it can be measured as no-newlines only")
    case = Case(
        folder=folder,
        run=_changed(stored, settings, batch, segment),
        checkpoint=checkpoint,
        hardware=device.pick(target, stored.train.precision if precision == "auto" else precision),
        tokens=prepare_for_run(folder, stored.data, source),
        split=split,
        protocol=protocol,
        size=size,
    )
    if context is not None:
        show(_context(case, context), as_json=as_json)
        return
    reading = Reading(
        # A model trained without newlines has no other way of being measured.
        protocol=protocol if stored.data.newlines else "no-newlines",
        window=window,
        stride=stride,
        cache=None
        if cache is None
        else CacheConfig(window=cache, theta=cache_theta, share=cache_lambda),
    )
    if memory is not None:
        _sweep(case, reading, _lengths(memory), as_json=as_json)
        return
    how = None
    if adapting:
        how = DynamicConfig(rule=dynamic_rule, lr=dynamic_lr, decay=dynamic_decay)
        how = how if segment is None else replace(how, segment=segment)
    with together(launch(), case.hardware.device, Joining()) as ranks:
        found, report = _measured(replace(case, ranks=ranks), reading, how)
    if launch().rank:
        return
    if size is None and not settings:
        folder.note_results(found)
    show(report, as_json=as_json)


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """What is measured: a run, perhaps under other settings, and a text."""

    folder: RunFolder
    run: RunConfig
    hardware: Hardware
    checkpoint: str | None
    tokens: Tokens
    split: str
    protocol: str
    size: int | None
    ranks: Ranks = field(default_factory=Ranks)

    def text(self) -> Split:
        """The text to score."""
        return self._read(self.split, self.size)

    def train(self) -> Split:
        """The text the run was trained on."""
        return self._read("train", None)

    def _read(self, name: str, size: int | None) -> Split:
        split, vocab = self.tokens.split(name), self.tokens.vocab
        if size is not None:
            split = first_bytes(split, size, vocab)
        return without_newlines(split, vocab) if self.protocol == "no-newlines" else split

    def model(self) -> LanguageModel:
        """The trained weights under the case's settings."""
        return load_model(self.folder, self.hardware, self.checkpoint, self.run)

    def apart(self) -> list[str]:
        """What tells the case from the usual one: another checkpoint, another precision."""
        name, usual = self.folder.checkpoint(self.checkpoint), self.folder.checkpoint()
        known = (self.folder.path / "provenance.json").exists()
        precision = self.hardware.precision
        trained_in = self.folder.read("provenance").get("precision") if known else None
        words = [] if name == usual else [name]
        return words + ([] if precision == (trained_in or precision) else [precision])

    def entry(self, found: Evaluation) -> dict[str, Any]:
        """Figures, with what they are figures of."""
        name = self.folder.checkpoint(self.checkpoint)
        return {
            "split": self.split,
            **found.to_json(),
            "precision": self.hardware.precision,
            "checkpoint": name,
            "step": self.folder.step(name),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """How the text is read, besides `evaluate.batch` and `evaluate.segment`."""

    protocol: str
    window: int | None = None
    """Length of fresh windows; none: carried streams."""
    stride: int | None = None
    """Tokens scored per window; none: half of it."""
    cache: CacheConfig | None = None

    def answer(self, case: Case, model: LanguageModel) -> Evaluation:
        """Score the case's text."""
        text, hardware, e = case.text(), case.hardware, case.run.evaluate
        watched = case.ranks.rank == 0
        common: dict[str, Any] = {"batch": e.batch, "protocol": self.protocol, "progress": watched}
        dealt = {**common, "ranks": case.ranks}
        if self.window is not None:
            stride = self._stride(self.window)
            return windowed(model, text, hardware, window=self.window, stride=stride, **dealt)
        if self.cache is not None:
            return cached(model, text, hardware, self.cache, segment=e.segment, **common)
        return carried(model, text, hardware, segment=e.segment, **dealt)

    def label(self, case: Case) -> str:
        """The name of the figures in results.json; what is usual goes unsaid."""
        if self.window is not None:
            pace = f"window {self.window} stride {self._stride(self.window)}"
            return _joined(case.split, self.protocol, pace, *case.apart())
        now, stored = case.run.evaluate, case.folder.config().evaluate
        words = [
            f"{name} {value}"
            for name in ("batch", "segment")
            if (value := getattr(now, name)) != getattr(stored, name)
        ]
        if (c := self.cache) is not None:
            words.append(f"cache {c.window} theta {c.theta:g} lambda {c.share:g}")
        return _joined(case.split, self.protocol, *words, *case.apart())

    def _stride(self, window: int) -> int:
        return max(1, window // 2) if self.stride is None else self.stride


def _refuse_contradictions(options: Set[str], settings: Sequence[str]) -> None:
    refuse_strays(options, NEEDS)
    refuse_apart(options, APART)
    if launch().size > 1 and (strays := [option for option in ALONE if option in options]):
        raise UserError(f"{strays[0]} is for one process; run it without torchrun")
    named = {setting.partition("=")[0].strip() for setting in settings}
    for option, setting in TWICE.items():
        if option in options and setting in named:
            raise UserError(f"{option} and --set {setting} say the same; leave one of them out")


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


def _measured(
    case: Case, reading: Reading, how: DynamicConfig | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Entries for results.json, and the report to print."""
    model = case.model()
    report = case.entry(reading.answer(case, model))
    found = {reading.label(case): report}
    if how is None:
        return found, report
    moved = dynamic(
        model,
        case.text(),
        case.hardware,
        how,
        train=case.train(),
        protocol=reading.protocol,
        progress=True,
    )
    pace = [] if how.segment == DynamicConfig().segment else [f"segment {how.segment}"]
    label = _joined(case.split, reading.protocol, *pace, "dynamic", *case.apart())
    found[label] = case.entry(moved)
    return found, report | {"dynamic": moved.to_json()}


def _joined(split: str, protocol: str, *words: str) -> str:
    return ", ".join([split, *([] if protocol == "bytes" else [protocol]), *words])


def _has_memory(run: RunConfig) -> bool:
    """Whether the setting changes what is carried; a stack has it even without such branches."""
    if not hasattr(run.model, "memory"):
        return False
    sizes = [
        build_model(with_settings(run, [f"model.memory={length}"]), "meta").state_numbers()
        for length in (1, 2)
    ]
    return sizes[0] != sizes[1]


def _sweep(case: Case, reading: Reading, lengths: Sequence[int], *, as_json: bool) -> None:
    if not _has_memory(case.run):
        raise UserError(f"this {case.run.family} has no memory whose length could be varied")
    rows = []
    for length in lengths:
        # A segment sees itself whole: up to its length, all lengths of memory would be one.
        usual = case.run.evaluate.segment
        segment = min(usual, max(1, length // 2)) if length else usual
        changed = [f"model.memory={length}", f"evaluate.segment={segment}"]
        now = replace(case, run=with_settings(case.run, changed))
        result = reading.answer(now, now.model())
        rows.append({"memory": length, "segment": segment, **result.to_json()})
        if not as_json:
            typer.echo(
                f"memory {length:>6,}  segment {segment:>5,}"
                f"  {result.bits_per_byte:.4f} bits per byte  {result.elapsed_s:.1f} s"
            )
    if as_json:
        typer.echo(json.dumps({"memory": rows}))


def _lengths(memory: str) -> list[int]:
    try:
        return [int(word) for word in memory.split(",")]
    except ValueError:
        raise UserError(f"--memory takes numbers such as 0,1000,5000, not {memory!r}") from None


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
