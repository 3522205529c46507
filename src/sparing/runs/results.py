"""The figures a run folder holds: what config.json, the journal and results.json tell."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparing import units
from sparing.errors import UserError
from sparing.models.cost import cost
from sparing.runs.build import build_model
from sparing.runs.config import RunConfig, to_json
from sparing.runs.folder import RunFolder
from sparing.train import checkpoint, journal

ONE_BYTE = ("bytes", "symbols")
"""Vocabularies in which a token is a byte."""
ADAPTED = ("cache", "dynamic")
"""How labels name readings whose weights or predictions did not stay as trained."""
IN_HOW = ("window", "batch", "segment")
"""Words of a label that its `how` says in full."""


@dataclass(frozen=True, slots=True)
class Score:
    """Bits per byte of a split, and how they were measured."""

    bits_per_byte: float
    bytes: int
    whole: bool
    """Whether that is all of the split."""
    reading: str
    """Protocol, how each token was reached, and what else was unusual."""
    step: int
    """Of the weights measured."""

    @property
    def protocol(self) -> str:
        """`bytes` or `no-newlines`."""
        return self.reading.partition(",")[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """One run in numbers; None where it does not tell."""

    recipe: str
    corpus: str
    seed: int
    settings: dict[str, Any]
    """All of them but the seed: what runs must share to be seeds of one another."""
    parameters: int
    """As deployed."""
    bytes_read: float | None
    elapsed_s: float | None
    """From the start of the process to the last entry of the journal."""
    bytes_per_s: float | None
    """Between the first and the last `train` entry, which leaves out compilation."""
    peak_bytes: float | None
    """The most that any entry tells: of the device, or resident where that is a CPU."""
    judged: Score | None
    """What the training itself measured last."""
    valid: Score | None
    """Of the whole split where that was evaluated, else what the training measured last."""
    test: Score | None
    device: str | None


def read_figures(folder: RunFolder) -> Figures:
    """The figures of a run; a UserError where a file of it is damaged."""
    run, entries, results = folder.config(), journal.read_checked(folder.metrics), _results(folder)
    notes = [results.get("training") or {}, *entries]
    size, speed = _bytes_per_token(run, entries), _tokens_per_s(entries)
    tokens, (valid, test) = _last(notes, "tokens"), read_scores(folder)
    return Figures(
        recipe=run.recipe,
        corpus=run.data.corpus,
        seed=run.train.seed,
        settings=_without_seed(run),
        parameters=cost(build_model(run, "meta")).parameters_deployed,
        bytes_read=None if tokens is None or size is None else size * tokens,
        elapsed_s=_last(notes, "elapsed_s"),
        bytes_per_s=None if speed is None or size is None else size * speed,
        peak_bytes=max(_numbers(notes, "peak_bytes"), default=None),
        judged=_judged(run, entries),
        valid=valid,
        test=test,
        device=device_of(folder),
    )


def read_scores(folder: RunFolder) -> tuple[Score | None, Score | None]:
    """Valid and test of a run, as `read_figures` has them, without building its model.

    Figures of weights that a longer training has replaced since do not count.
    """
    entries, reached = journal.read_checked(folder.metrics), _reached(folder)
    results = {
        label: entry
        for label, entry in _results(folder).items()
        if entry.get("step") == reached.get(str(entry.get("checkpoint")), entry.get("step"))
    }
    return score(results, "valid") or _judged(folder.config(), entries), score(results, "test")


def _reached(folder: RunFolder) -> dict[str, int]:
    """The steps of a run's checkpoints; without any, as in a published one, what is known of it."""
    if names := checkpoint.list_names(folder.checkpoints):
        return {name: folder.step(name) for name in names}
    best = journal.best(journal.read_checked(folder.metrics))
    return {} if best is None else {"best": best["step"]}


def device_of(folder: RunFolder) -> str | None:
    """What the run was trained on."""
    known = (folder.path / "provenance.json").exists()
    device = folder.read("provenance").get("device") if known else None
    return device if isinstance(device, str) else None


def score(results: Mapping[str, Any], split: str) -> Score | None:
    """The figure of a whole split with static weights; the usual reading before any other."""
    labels = [label for label in results if _is_static(label, split)]
    usual = [label for label in (split, f"{split}, no-newlines") if label in labels]
    for label in [*usual, *labels]:
        if found := _score(results[label], label.split(", ")[1:], whole=True):
            return found
    return None


def _is_static(label: str, split: str) -> bool:
    first, *rest = label.split(", ")
    return first == split and not any(word.startswith(ADAPTED) for word in rest)


def _judged(run: RunConfig, entries: Sequence[Mapping[str, Any]]) -> Score | None:
    """What the training itself measured last."""
    judged = [entry for entry in entries if entry["kind"] == "valid"]
    if not judged:
        return None
    # Older journals do not say; all of a split may be no longer than what was asked for.
    whole = judged[-1].get("whole", run.train.evaluate_bytes is None)
    return _score(judged[-1], [], whole=bool(whole))


def _score(entry: Mapping[str, Any], words: Sequence[str], *, whole: bool) -> Score | None:
    bits, size, step = (_number(entry.get(key)) for key in ("bits_per_byte", "bytes", "step"))
    if bits is None or size is None or step is None:
        return None
    protocol, how = str(entry.get("protocol", "bytes")), str(entry.get("how", ""))
    more = [word for word in words if word != protocol and not word.startswith(IN_HOW)]
    reading = ", ".join(filter(None, [protocol, how, *more]))
    return Score(bits, int(size), whole, reading, int(step))


def spread(values: Sequence[float]) -> float:
    """Half of worst less best."""
    return (max(values) - min(values)) / 2


def mean(values: Sequence[float | None]) -> float | None:
    """Of those that are known; None if none is."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _results(folder: RunFolder) -> dict[str, Any]:
    found = folder.results()
    for name, value in found.items():
        if value is not None and not isinstance(value, Mapping):
            raise UserError(f"{folder.path / 'results.json'} is damaged: {name} is not an object")
    return {name: value for name, value in found.items() if value is not None}


def _last(notes: Sequence[Mapping[str, Any]], field: str) -> float | None:
    """The journal's last word before that of results.json, whose time counts the evaluation."""
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
    """Mean bytes of a token of the training text, from its loss per either."""
    if run.data.vocab in ONE_BYTE:
        return 1.0
    for entry in entries:
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
