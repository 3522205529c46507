"""References: the curves and figures of published runs, as far as `sparing verify` needs them."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sparing.documents import Count, read_document
from sparing.errors import UserError, unknown_name
from sparing.evaluation.loss import how_streams_are_read
from sparing.files import write_json
from sparing.runs.config import RunConfig, from_json, to_json
from sparing.runs.evaluate import result_label
from sparing.runs.folder import RunFolder
from sparing.runs.records import read_provenance, read_texts
from sparing.training import journal
from sparing.training.stopping import Pace

HOME = Path(__file__).parents[1] / "references"
"""One JSON file per recipe; `make references` writes them from `results/`."""
SPLITS = ("valid", "test")


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """How far a run may be from its reference."""

    curve: float
    """Of a stretch of the curve: difference over the reference's bits per byte."""
    figure: float
    """Of a whole split: difference in bits per byte."""
    source: str
    """Where these numbers come from."""


MEASURED_AT_8M = Spread(
    curve=0.012,
    figure=0.005,
    source="three seeds of an 8M model were up to 0.0072 apart on stretches of the curve and "
    "0.0036 on test; not measured for the larger ones",
)
SPREADS = {
    "quickstart": Spread(
        curve=0.02,
        figure=0.025,
        source="three seeds were up to 1.7 % apart on stretches of the curve and 0.021 on test",
    )
}
"""Of recipes whose own spread has been measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """Bits per byte of the training text, a mean for each entry of the journal."""

    steps: tuple[Count, ...]
    elapsed_s: tuple[float, ...]
    bits_per_byte: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reference:
    """What a run is compared with."""

    config: dict[str, Any]
    """The complete settings of the run."""
    commit: str | None
    device: str | None
    precision: str | None
    texts: dict[str, str] | None
    """SHA-256 of each split; None where the run does not record it."""
    steps: Count
    """Updates of the whole run."""
    elapsed_s: float
    """Seconds from the start of its process to the last of them."""
    curve: Curve
    validations: dict[str, float]
    """Bits per byte of the validations on the way, by step."""
    figures: dict[str, float]
    """Bits per byte of whole splits, read as `evaluate` of the settings says."""
    spread: Spread

    def run(self) -> RunConfig:
        """The settings."""
        return from_json(self.config)

    def pace(self) -> Pace | None:
        """Its use of the budget by steps; None for a budget that does not depend on the clock."""
        minutes = self.run().train.minutes
        if minutes is None:
            return None
        before_s = self.curve.steps[0] * self.elapsed_s / self.steps
        start_s = max(0.0, self.curve.elapsed_s[0] - before_s)
        # The last update is the one that uses the budget up.
        return Pace(
            (0, *self.curve.steps, self.steps),
            (start_s, *self.curve.elapsed_s, max(self.elapsed_s, 60 * minutes)),
        )


def find_reference(recipe: str) -> Reference:
    """The reference of a recipe that comes with the package."""
    known = sorted(path.stem for path in HOME.glob("*.json"))
    if recipe not in known:
        raise unknown_name("recipe with a reference", recipe, known)
    return read_document(HOME / f"{recipe}.json", Reference)


def reference_of(folder: RunFolder) -> Reference:
    """The reference that a finished run is."""
    run, training = folder.config(), folder.results().get("training")
    if training is None:
        raise UserError(f"run {folder.path} has not finished; train it to the end first")
    provenance, entries = read_provenance(folder.path), journal.read(folder.metrics)
    validations = [e for e in entries if e["kind"] == "valid" and e.get("bits_per_byte")]
    return Reference(
        config=to_json(run),
        commit=provenance.get("commit"),
        device=provenance.get("device"),
        precision=provenance.get("precision"),
        texts=read_texts(folder.path),
        steps=training["steps"],
        elapsed_s=float(training["elapsed_s"] or 0.0),
        curve=read_curve(folder),
        validations={str(e["step"]): float(e["bits_per_byte"]) for e in validations},
        figures=read_figures(folder),
        spread=SPREADS.get(run.recipe, MEASURED_AT_8M),
    )


def read_curve(folder: RunFolder) -> Curve:
    """The training curve in a journal; entries without a finite loss are left out."""
    points = [
        (entry["step"], entry["elapsed_s"], entry["bits_per_byte"])
        for entry in journal.read(folder.metrics)
        if entry["kind"] == "train" and entry.get("elapsed_s") and entry.get("bits_per_byte")
    ]
    if not points:
        raise UserError(f"the journal of run {folder.path} has no training entry to compare")
    steps, elapsed_s, bits = zip(*points, strict=True)
    return Curve(
        steps=steps,
        elapsed_s=tuple(round(each, 1) for each in elapsed_s),
        bits_per_byte=tuple(round(each, 5) for each in bits),
    )


def read_figures(folder: RunFolder) -> dict[str, float]:
    """The figures of whole splits that were read as the run's settings say."""
    config, results = folder.config(), folder.results()
    how = how_streams_are_read(config.evaluate.batch, config.evaluate.segment)
    return {
        split: float(bits)
        for split in SPLITS
        if (entry := results.get(result_label(split, config.data.protocol))) is not None
        and entry.get("how") == how
        and (bits := entry.get("bits_per_byte"))
    }


def write_reference(folder: RunFolder) -> None:
    """Make a finished run the reference of its recipe."""
    found = reference_of(folder)
    write_json(HOME / f"{found.config['recipe']}.json", asdict(found))


def without_harmless(run: RunConfig) -> RunConfig:
    """The run with settings that do not change the curve at one value.

    The seed is among them: how far seeds are apart is what the spread says. Not so
    `train.log_every`, as an entry of the curve is a mean over that many steps.
    """
    t = replace(run.train, seed=0, micro_batches=1, compiled=True, checkpoint_every=1)
    return replace(run, train=replace(t, evaluate_every=0, evaluate_bytes=None, keep_state=True))
