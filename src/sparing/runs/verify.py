"""Verification: whether a run has the curve and the figures of its reference."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sparing import device
from sparing.config import differences
from sparing.errors import UserError
from sparing.runs.config import for_vocab
from sparing.runs.evaluate import Case, Reading, evaluate_case
from sparing.runs.folder import RunFolder, open_run, prepare_for_run
from sparing.runs.records import read_provenance, read_texts
from sparing.runs.reference import (
    Curve,
    Reference,
    read_curve,
    read_figures,
    without_harmless,
)
from sparing.runs.train import TrainOptions, train
from sparing.training import journal
from sparing.units import pluralize

By = Literal["steps", "minutes"]
STRETCHES = 10
"""Parts of a curve, each of which is compared by its mean."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedFigure:
    """A stretch of a curve, or a figure, beside that of the reference."""

    what: str
    reference: float
    here: float
    allowed: float

    @property
    def within(self) -> bool:
        """Whether the difference is allowed; that of a loss that is not finite is not."""
        return abs(self.here - self.reference) <= self.allowed

    def to_json(self) -> dict[str, Any]:
        """The row with its difference and verdict."""
        return {
            "what": self.what,
            "reference": self.reference,
            "here": self.here,
            "difference": self.here - self.reference,
            "allowed": self.allowed,
            "within": self.within,
        }


def train_like(reference: Reference, path: Path, options: TrainOptions) -> int:
    """Train the run of a reference anew and, if it is whole, measure the figures it has.

    Return 0, or the number of the signal that ended the training early.
    """
    run = reference.run()
    signal = train(run, path, options)
    if signal or options.until < 1:
        return signal
    folder = open_run(path)
    stored = folder.config()
    tokens = prepare_for_run(folder, stored.data, options.source, progress=options.progress)
    hardware = device.pick(options.device, stored.train.precision)
    for split in reference.figures:
        case = Case(
            folder=folder,
            run=stored,
            hardware=hardware,
            checkpoint=folder.checkpoint(),
            tokens=tokens,
            split=split,
            size=None,
        )
        found, _ = evaluate_case(case, Reading(), None)
        folder.note_results(found)
    return 0


def compare(reference: Reference, folder: RunFolder, *, until: float = 1.0) -> dict[str, Any]:
    """Compare a run with a reference; a record with a verdict, rows and notes."""
    _refuse_other_run(reference, folder)
    by = how_to_compare(folder)
    end = end_of_part(reference, by, until)
    ours, theirs = read_curve(folder), reference.curve
    _refuse_unfinished(folder, _axis(ours, by), _axis(theirs, by), end)
    rows = [*_curve_rows(reference, ours, by, end), *_validation_rows(reference, folder, by, end)]
    if until >= 1:
        rows += _figure_rows(reference, folder)
    record = [row.to_json() for row in rows]
    return {
        "recipe": reference.config["recipe"],
        "verdict": "within" if all(row.within for row in rows) else "outside",
        "by": by,
        "until": until,
        "run": str(folder.path),
        "steps": ours.steps[-1],
        "reference": {
            name: getattr(reference, name)
            for name in ("commit", "device", "precision", "steps", "elapsed_s")
        },
        "spread": reference.spread.source,
        "speed": _speed(ours) / _speed(theirs),
        "rows": record,
        "notes": list(_notes(reference, folder, ours, by)),
    }


def end_of_part(reference: Reference, by: By, until: float) -> float:
    """The step or second after a fraction of a reference, refused before its first entry."""
    end = until * (reference.steps if by == "steps" else reference.elapsed_s)
    if end < _axis(reference.curve, by)[0]:
        raise _too_little(reference)
    return end


def _too_little(reference: Reference) -> UserError:
    return UserError(
        f"the journal of the reference begins at step {reference.curve.steps[0]:,} of "
        f"{reference.steps:,}; compare more with --until"
    )


def how_to_compare(folder: RunFolder) -> By:
    """By steps where the schedule does not depend on this machine's clock, else by minutes."""
    paced = all(start.get("paced") for start in folder.starts())
    return "steps" if paced or folder.config().train.minutes is None else "minutes"


def _refuse_other_run(reference: Reference, folder: RunFolder) -> None:
    config = folder.config()
    wanted = for_vocab(reference.run(), config.model.vocab_size)
    if changed := differences(without_harmless(wanted), without_harmless(config)):
        raise UserError(
            f"{folder.path} has other settings than the reference ({changed[0]}); only a run of "
            "the recipe as it was published can be compared"
        )


def _refuse_unfinished(
    folder: RunFolder,
    ours: npt.NDArray[np.float64],
    theirs: npt.NDArray[np.float64],
    end: float,
) -> None:
    # A journal may end up to an entry before the run does.
    missing = end - ours[-1]
    if missing > 2 * float(np.diff(theirs, prepend=0).max()):
        share = ours[-1] / theirs[-1]
        raise UserError(
            f"the journal of {folder.path} holds {share:.0%} of the reference's curve; resume the "
            f"run, or compare less with --until {share:.2f}"
        )


def _curve_rows(reference: Reference, ours: Curve, by: By, end: float) -> Iterator[ComparedFigure]:
    """Means of both curves over equal stretches, at the places of the reference's entries."""
    theirs = reference.curve
    x, bits = _axis(theirs, by), np.asarray(theirs.bits_per_byte)
    here = np.interp(x, _axis(ours, by), np.asarray(ours.bits_per_byte))
    kept = np.flatnonzero((x <= end) & (x <= _axis(ours, by)[-1]))
    if not kept.size:
        raise _too_little(reference)
    for part in np.array_split(kept, min(STRETCHES, kept.size)):
        mean = float(bits[part].mean())
        yield ComparedFigure(
            what=_stretch(theirs, part, by),
            reference=mean,
            here=float(here[part].mean()),
            allowed=reference.spread.curve * mean,
        )


def _stretch(curve: Curve, part: npt.NDArray[np.intp], by: By) -> str:
    first, last = int(part[0]), int(part[-1])
    if by == "steps" and first == last:
        return f"train, step {curve.steps[first]:,}"
    if by == "steps":
        return f"train, steps {curve.steps[first]:,} to {curve.steps[last]:,}"
    return f"train, minutes {curve.elapsed_s[first] / 60:.1f} to {curve.elapsed_s[last] / 60:.1f}"


def _validation_rows(
    reference: Reference, folder: RunFolder, by: By, end: float
) -> Iterator[ComparedFigure]:
    """Validations after the same step; by minutes, weights of one step are not comparable.

    Nor are losses on other bytes of the split.
    """
    scored = (run.train.evaluate_bytes for run in (reference.run(), folder.config()))
    comparable = by == "steps" and len({*scored}) == 1
    for entry in journal.read(folder.metrics) if comparable else ():
        found = reference.validations.get(str(entry["step"]))
        if entry["kind"] == "valid" and found is not None and entry["step"] <= end:
            yield ComparedFigure(
                what=f"valid, step {entry['step']:,}",
                reference=found,
                here=float(entry.get("bits_per_byte") or np.nan),
                allowed=reference.spread.curve * found,
            )


def _figure_rows(reference: Reference, folder: RunFolder) -> Iterator[ComparedFigure]:
    figures = read_figures(folder)
    for split, bits in reference.figures.items():
        if split not in figures:
            raise UserError(
                f"{folder.path} has no figure of {split}; run `sparing evaluate {folder.path} "
                f"--split {split}`"
            )
        yield ComparedFigure(
            what=f"{split}, whole",
            reference=bits,
            here=figures[split],
            allowed=reference.spread.figure,
        )


def _notes(reference: Reference, folder: RunFolder, ours: Curve, by: By) -> Iterator[str]:
    speed, run = _speed(ours) / _speed(reference.curve), reference.run()
    minutes = run.train.minutes
    if by == "minutes":
        steps = pluralize(ours.steps[-1], "step")
        yield (
            f"{steps} in the time of the reference's {reference.steps:,}: this machine has "
            f"{speed:.2f} times the speed. Fewer steps give a worse figure, whatever the code does."
        )
    elif minutes is not None:
        yield (
            f"{speed:.2f} times the speed of the reference: the recipe's {minutes:g} minutes are "
            f"{minutes / speed:.3g} here. Every step had the reference's learning rate."
        )
    else:
        yield f"{speed:.2f} times the speed of the reference"
    if reference.texts != (found := read_texts(folder.path)) and reference.texts and found:
        yield "trained on another text than the reference, so the tolerance does not apply"
    here = read_provenance(folder.path)
    for name in ("device", "precision"):
        there, now = getattr(reference, name), here.get(name)
        if there != now:
            yield f"{name} {now} in place of {there}"
    if (seed := folder.config().train.seed) != run.train.seed:
        yield f"seed {seed} in place of {run.train.seed}"


def _axis(curve: Curve, by: By) -> npt.NDArray[np.float64]:
    return np.asarray(curve.steps if by == "steps" else curve.elapsed_s, np.float64)


def _speed(curve: Curve) -> float:
    """Steps per second, from the first to the last entry; over all of it if there is one alone."""
    if len(curve.steps) < 2 or curve.elapsed_s[-1] <= curve.elapsed_s[0]:
        return curve.steps[-1] / max(curve.elapsed_s[-1], 0.1)
    return (curve.steps[-1] - curve.steps[0]) / (curve.elapsed_s[-1] - curve.elapsed_s[0])
