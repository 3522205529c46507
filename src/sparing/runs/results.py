"""Results of a run, read from its config.json, its journal and its results.json."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparing import units
from sparing.data.vocab import ONE_BYTE
from sparing.models.cost import cost
from sparing.runs.build import build_model
from sparing.runs.config import RunConfig, to_json
from sparing.runs.folder import RunFolder
from sparing.runs.records import read_provenance
from sparing.training import checkpoint, journal

ADAPTED = ("cache", "dynamic")
"""Label parts of evaluations whose weights or predictions adapt to the text."""
IN_HOW = ("window", "batch", "segment")
"""Label parts that an entry's `how` already contains."""


@dataclass(frozen=True, slots=True)
class SplitResult:
    """Bits per byte of a split, and how they were measured."""

    bits_per_byte: float
    bytes: int
    whole: bool
    """Whether those bytes are the whole split."""
    reading: str
    """Protocol, context of each token, and anything else that differs from the default."""
    step: int
    """Step of the weights that were measured."""
    perplexity_per_token: float | None = None

    @property
    def protocol(self) -> str:
        """`bytes` or `no-newlines`."""
        return self.reading.partition(",")[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSummary:
    """One run in numbers; None where the run does not record one."""

    recipe: str
    corpus: str
    seed: int
    settings: dict[str, Any]
    """All settings but the seed: runs that share them are seeds of one another."""
    parameters: int
    """As deployed."""
    bytes_read: float | None
    elapsed_s: float | None
    """From the start of the process to the last entry of the journal."""
    bytes_per_s: float | None
    """Between the first and the last `train` entry, so compilation before that is not included."""
    peak_bytes: float | None
    """Peak memory of the device; resident memory on a CPU."""
    last_validation: SplitResult | None
    """The last validation during training."""
    best_validation: SplitResult | None
    """The best validation during training: the one of checkpoint `best`."""
    valid: SplitResult | None
    """An evaluation of the whole split if there is one, else the last validation."""
    test: SplitResult | None
    device: str | None


def summarize(folder: RunFolder) -> RunSummary:
    """Summarize a run; raises UserError if one of its files is damaged."""
    run, entries, results = folder.config(), journal.read(folder.metrics), folder.results()
    notes: list[Mapping[str, Any]] = [results.get("training", {}), *entries]
    size, speed = _bytes_per_token(run, entries), _tokens_per_s(entries)
    tokens, (valid, test) = _last(notes, "tokens"), read_split_results(folder)
    return RunSummary(
        recipe=run.recipe,
        corpus=run.data.corpus,
        seed=run.train.seed,
        settings=_without_seed(run),
        parameters=cost(build_model(run, "meta")).parameters_deployed,
        bytes_read=None if tokens is None or size is None else size * tokens,
        elapsed_s=_last(notes, "elapsed_s"),
        bytes_per_s=None if speed is None or size is None else size * speed,
        peak_bytes=max(_numbers(notes, "peak_bytes"), default=None),
        last_validation=_last_validation(run, entries),
        best_validation=_validation(run, journal.best(entries)),
        valid=valid,
        test=test,
        device=device_of(folder),
    )


def read_split_results(folder: RunFolder) -> tuple[SplitResult | None, SplitResult | None]:
    """`valid` and `test` of a run, as in `summarize`, without building its model.

    Results of weights that later training has replaced do not count.
    """
    entries, steps = journal.read(folder.metrics), _checkpoint_steps(folder)
    results = {
        label: entry
        for label, entry in folder.results().items()
        if entry.get("step") == steps.get(str(entry.get("checkpoint")), entry.get("step"))
    }
    valid = find_split_result(results, "valid") or _last_validation(folder.config(), entries)
    return valid, find_split_result(results, "test")


def _checkpoint_steps(folder: RunFolder) -> dict[str, int]:
    """Step of each checkpoint; for a published run without any, that of `best` in its journal."""
    if names := checkpoint.list_names(folder.checkpoints):
        return {name: folder.step(name) for name in names}
    best = journal.best(journal.read(folder.metrics))
    return {} if best is None else {"best": best["step"]}


def device_of(folder: RunFolder) -> str | None:
    """The device the run was trained on, if it is known."""
    return read_provenance(folder.path).get("device")


def find_split_result(results: Mapping[str, Any], split: str) -> SplitResult | None:
    """The result of a whole split with static weights; the default protocols come first."""
    labels = [label for label in results if _is_static(label, split)]
    usual = [label for label in (split, f"{split}, no-newlines") if label in labels]
    for label in [*usual, *labels]:
        if found := _split_result(results[label], label.split(", ")[1:], whole=True):
            return found
    return None


def _is_static(label: str, split: str) -> bool:
    first, *rest = label.split(", ")
    return first == split and not any(word.startswith(ADAPTED) for word in rest)


def _last_validation(run: RunConfig, entries: Sequence[Mapping[str, Any]]) -> SplitResult | None:
    validations = [entry for entry in entries if entry["kind"] == "valid"]
    return _validation(run, validations[-1] if validations else None)


def _validation(run: RunConfig, entry: Mapping[str, Any] | None) -> SplitResult | None:
    if entry is None:
        return None
    # Older journals lack `whole`; a short split may be whole even with a limit on its bytes.
    whole = entry.get("whole", run.train.evaluate_bytes is None)
    return _split_result(entry, [], whole=bool(whole))


def _split_result(
    entry: Mapping[str, Any], words: Sequence[str], *, whole: bool
) -> SplitResult | None:
    bits, size, step = (_number(entry.get(key)) for key in ("bits_per_byte", "bytes", "step"))
    if bits is None or size is None or step is None:
        return None
    protocol, how = str(entry.get("protocol", "bytes")), str(entry.get("how", ""))
    more = [word for word in words if word != protocol and not word.startswith(IN_HOW)]
    reading = ", ".join(filter(None, [protocol, how, *more]))
    perplexity = _number(entry.get("perplexity_per_token"))
    return SplitResult(bits, int(size), whole, reading, int(step), perplexity)


def half_range(values: Sequence[float]) -> float:
    """Half the distance between the worst and the best value."""
    return (max(values) - min(values)) / 2


def mean(values: Sequence[float | None]) -> float | None:
    """Mean of the known values; None if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _last(notes: Sequence[Mapping[str, Any]], field: str) -> float | None:
    """The journal's last value, else that of results.json, whose time includes evaluation."""
    found = _numbers(notes, field)
    return found[-1] if found else None


def _numbers(notes: Sequence[Mapping[str, Any]], field: str) -> list[float]:
    return [value for note in notes if (value := _number(note.get(field))) is not None]


def _tokens_per_s(entries: Sequence[Mapping[str, Any]]) -> float | None:
    places = [
        (tokens, elapsed)
        for entry in entries
        if entry["kind"] == "train"
        and (tokens := _number(entry.get("tokens"))) is not None
        and (elapsed := _number(entry.get("elapsed_s"))) is not None
    ]
    if len(places) < 2 or places[-1][1] <= places[0][1]:
        return None
    return (places[-1][0] - places[0][0]) / (places[-1][1] - places[0][1])


def _bytes_per_token(run: RunConfig, entries: Sequence[Mapping[str, Any]]) -> float | None:
    """Mean bytes per token of the training text: the ratio of its loss per token and per byte."""
    if run.data.vocab in ONE_BYTE:
        return 1.0
    for entry in entries:
        if entry["kind"] != "train":
            continue
        nats, bits = _number(entry.get("nats_per_token")), _number(entry.get("bits_per_byte"))
        if nats and bits:
            return units.bits_per_byte(nats, 1) / bits
    return None


def _without_seed(run: RunConfig) -> dict[str, Any]:
    settings = to_json(run)
    del settings["train"]["seed"]
    return settings


def _number(value: Any) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None
