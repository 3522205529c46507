"""The board: searched networks beside the rules and beside chance, all retrained alike.

Without its controls a searched network proves nothing: any network of that cost might do as well.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sparing import device, files
from sparing.data.tokens import prepare
from sparing.device import Hardware
from sparing.errors import UserError
from sparing.evaluate.loss import carried
from sparing.models.cost import cost
from sparing.models.stack.config import StackConfig
from sparing.models.stack.patterns import (
    IDENTITY,
    cost_of,
    interleaved,
    par,
    random_pattern,
    sandwich,
)
from sparing.models.supernet.config import SupernetConfig
from sparing.plot.figure import save
from sparing.plot.pareto import Point, draw_pareto
from sparing.runs.build import build_model
from sparing.runs.config import RunConfig, to_json, with_settings
from sparing.runs.folder import (
    RunFolder,
    is_run,
    load_at,
    open_run,
    prepare_for_run,
    refuse_another,
)
from sparing.runs.provenance import provenance
from sparing.runs.results import spread
from sparing.runs.table import NOTHING, markdown
from sparing.runs.train import TrainOptions, train
from sparing.search.cost import REGIMES, as_stack, prices, timed_patterns
from sparing.search.derive import derive, searched, stack_run

RANDOM = "random, equal cost"
DRAWS = 50
"""Tries at random networks that do not stand on the board already."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BoardOptions:
    """Who stands on the board, and how often."""

    seeds: int = 2
    """Trainings of every network."""
    chances: int = 2
    """Random networks that cost what the first searched one does."""
    train: TrainOptions

    def __post_init__(self) -> None:
        if self.seeds < 1 or self.chances < 0:
            raise UserError("a board needs at least one seed, and no fewer than 0 random networks")


@dataclass(frozen=True, slots=True)
class Entry:
    """A network on the board."""

    name: str
    kind: str
    pattern: str


def entries(searches: Sequence[RunFolder], costs: Mapping[str, float], chances: int) -> list[Entry]:
    """Searched networks, the one they started against, the rules, and random ones; each once."""
    c = searched(searches[0])
    named = [
        Entry(f"searched-{number}", "searched", derive(folder).model.letters)
        for number, folder in enumerate(searches, start=1)
    ]
    found: dict[str, Entry] = {}
    for entry in [*named, *_rules(c)]:
        found.setdefault(entry.pattern, entry)
    target, wanted = cost_of(named[0].pattern, costs), len(found) + chances
    competing = {letter: costs[letter] for letter in c.search.candidates}
    for seed in range(DRAWS):
        if len(found) == wanted:
            break
        drawn = random_pattern(len(c.letters), competing, target, seed=seed).replace(IDENTITY, "")
        number = chances - (wanted - len(found)) + 1
        found.setdefault(drawn, Entry(f"random-{number}", RANDOM, drawn))
    return list(found.values())


def board(
    searches: Sequence[Path], base: RunConfig | None, out: Path, options: BoardOptions
) -> tuple[int, dict[str, Any]]:
    """Train whoever is missing, measure all, write table and picture; a signal that came, or 0."""
    folders = [open_run(path) for path in searches]
    run = stack_run(base or derive(folders[0]))
    _refuse_unfit(run, options.train)
    hardware = device.pick(options.train.device, run.train.precision)
    # Of the network that is trained here, which the search need not have priced.
    costs = prices(run, _letters(folders), hardware, "time")
    standing = entries(folders, costs.blocks, options.chances)
    trainings = _trainings(run, standing, out, options.seeds)
    for path, own in trainings.items():
        refuse_another(path, own, "board")
    times = _times(run, standing, hardware)
    for path, own in trainings.items():
        if signal := _trained(own, path, options.train, hardware):
            return signal, {}
    rows = [
        _row(run, entry, times, out, options.seeds) | {"predicted_ms": costs.of(entry.pattern)}
        for entry in standing
    ]
    _compare(rows, searched(folders[0]).letters)
    record = {
        "rows": rows,
        "notes": _notes(standing, options.chances),
        "run": to_json(run),
        **provenance(hardware, run.train.seed),
    }
    write(record, out)
    return 0, record


def write(record: Mapping[str, Any], out: Path) -> None:
    """`board.json`, `board.md` and, where matplotlib is installed, `pareto.png`."""
    files.write_json(out / "board.json", record)
    with files.writing(out / "board.md") as scratch:
        scratch.write_text(table(record["rows"], record["notes"]), encoding="utf-8")
    points = [
        Point(row["name"], row["kind"], row["train_ms"], row["valid"], row["valid_spread"])
        for row in record["rows"]
    ]
    recipe = record["run"]["recipe"]
    about = [f"{recipe} · commit {record['commit']} · {record['device']}"]
    figure = draw_pareto(
        points, f"Networks of {recipe}", x="milliseconds per training step", about=about
    )
    save(figure, out / "pareto.png")


def table(rows: Sequence[Mapping[str, Any]], notes: Sequence[str] = ()) -> str:
    """The board for people, best first."""
    heads = ["network", "pattern", "parameters", "step ms", "predicted ms", "of baseline"]
    heads += [
        "prefill ms",
        "token ms",
        "steps",
        "valid bits/byte",
        "± seeds",
        "test bits/byte",
        "test ppl/token",
    ]
    cells = [
        (
            row["name"],
            f"`{row['pattern']}`",
            f"{row['parameters'] / 1e6:.2f}M",
            f"{row['train_ms']:.2f}",
            f"{row['predicted_ms']:.2f}",
            f"{row['share_of_time']:.0%}",
            f"{row['prefill_ms']:.2f}",
            f"{row['decode_ms']:.2f}",
            f"{row['steps']:,.0f}",
            f"{row['valid']:.4f}",
            f"{row['valid_spread']:.4f}" if len(row["valid_by_seed"]) > 1 else NOTHING,
            f"{row['test']:.4f}",
            f"{row['test_perplexity']:.2f}",
        )
        for row in sorted(rows, key=lambda each: float(each["valid"]))
    ]
    return markdown(heads, cells, notes, words=("network", "pattern"))


def _refuse_unfit(run: RunConfig, options: TrainOptions) -> None:
    """Before anything is measured, which takes minutes: is there a text to train on?"""
    prepare(run.data, options.source, progress=options.progress)


def _letters(searches: Sequence[RunFolder]) -> str:
    return "".join(
        sorted({letter for folder in searches for letter in searched(folder).all_letters})
    )


def _notes(standing: Sequence[Entry], chances: int) -> list[str]:
    found = sum(entry.kind == RANDOM for entry in standing)
    if found == chances:
        return []
    return [f"{found} of {chances} random networks: {DRAWS} draws yielded no others of that cost."]


def _rules(c: SupernetConfig) -> list[Entry]:
    depth, known = len(c.letters), c.all_letters
    found = [Entry("baseline", "baseline", c.letters)]
    attention = next((letter for letter in c.letters_with("attention") if letter in known), None)
    dense = next((letter for letter in c.letters_with("dense") if letter in known), None)
    if attention is None or dense is None:
        return found
    found.append(Entry("interleaved", "rule", interleaved(depth, attention, dense)))
    if depth >= 5:
        found.append(Entry("par", "rule", par(depth, 5, attention, dense)))
    if depth >= 4:
        ends = max(1, depth // 6)
        # Pairs alone would leave an odd network one block short.
        pattern = sandwich(depth // 2, ends, attention, dense) + dense * (depth % 2)
        found.append(Entry("sandwich", "rule", pattern))
    return found


def _times(
    run: RunConfig[StackConfig], standing: Sequence[Entry], hardware: Hardware
) -> dict[str, dict[str, float]]:
    """Milliseconds of every pattern, regime by regime."""
    patterns = [entry.pattern for entry in standing]
    return {regime: timed_patterns(run, patterns, hardware, regime) for regime in REGIMES}


def _trainings(
    run: RunConfig[StackConfig], standing: Sequence[Entry], out: Path, seeds: int
) -> dict[Path, RunConfig]:
    """What is to be trained into which folder, seed by seed."""
    return {
        out / f"{entry.name}-seed{seed + 1}": with_settings(
            as_stack(run, entry.pattern), [f"train.seed={run.train.seed + seed}"]
        )
        for seed in range(seeds)
        for entry in standing
    }


def _trained(run: RunConfig, path: Path, options: TrainOptions, hardware: Hardware) -> int:
    """Train and test one network, unless that is done; go on where it was cut."""
    if is_run(path) and "test" in open_run(path).results():
        return 0
    signal = train(run, path, replace(options, resume=is_run(path)))
    if signal:
        return signal
    folder, e = open_run(path), run.evaluate
    tokens = prepare_for_run(folder, run.data, options.source, progress=False)
    protocol = "bytes" if run.data.newlines else "no-newlines"
    model, step = load_at(folder, hardware)
    found = carried(
        model,
        tokens.split("test"),
        hardware,
        batch=e.batch,
        segment=e.segment,
        protocol=protocol,
    )
    about = {"checkpoint": folder.checkpoint(), "step": step, "precision": hardware.precision}
    folder.note_results({"test": {"split": "test", **found.to_json(), **about}})
    return 0


def _row(
    run: RunConfig[StackConfig],
    entry: Entry,
    times: Mapping[str, Mapping[str, float]],
    out: Path,
    seeds: int,
) -> dict[str, Any]:
    read = [open_run(out / f"{entry.name}-seed{seed + 1}").read("results") for seed in range(seeds)]
    valid = [each["best_valid"]["bits_per_byte"] for each in read]
    test = [each["test"]["bits_per_byte"] for each in read]
    perplexity = [each["test"]["perplexity_per_token"] for each in read]
    price = cost(build_model(as_stack(run, entry.pattern), "meta"))
    return {
        "name": entry.name,
        "kind": entry.kind,
        "pattern": entry.pattern,
        "parameters": price.parameters_deployed,
        "flops_per_token": price.flops_per_token,
        **{f"{regime}_ms": found[entry.pattern] for regime, found in times.items()},
        "steps": sum(each["training"]["steps"] for each in read) / seeds,
        "valid": sum(valid) / seeds,
        "valid_spread": spread(valid),
        "valid_by_seed": valid,
        "test": sum(test) / seeds,
        "test_by_seed": test,
        "test_perplexity": sum(perplexity) / seeds,
    }


def _compare(rows: Sequence[dict[str, Any]], baseline: str) -> None:
    """Note the time of a training step as a share of the baseline's."""
    start = next(row for row in rows if row["pattern"] == baseline)
    for row in rows:
        row["share_of_time"] = row["train_ms"] / start["train_ms"]
