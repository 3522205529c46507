"""One search from recipe to pattern, and its log."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sparing import device, files, units
from sparing.config import described
from sparing.data.tokens import prepare
from sparing.device import Hardware
from sparing.errors import UserError
from sparing.models.stack.config import BLOCKS
from sparing.models.stack.patterns import random_pattern
from sparing.models.supernet.config import SupernetConfig
from sparing.plot.figure import save_figure
from sparing.plot.search import (
    Frame,
    calm_since,
    draw_cooling,
    draw_pi,
    read_frames,
    save_animation,
)
from sparing.plot.series import RunJournal, read_journals
from sparing.runs.check import check_trainable
from sparing.runs.config import RunConfig, for_vocab, to_json
from sparing.runs.folder import RunFolder, open_run
from sparing.runs.layout import format_number
from sparing.runs.train import TrainOptions, train
from sparing.search.cost import BlockCosts, Currency, Regime, additivity, block_costs, cost_table
from sparing.search.derive import (
    derive,
    explain_pattern,
    searched,
    share_of_baseline,
    supernet_run,
)
from sparing.training import journal

NAME = "search.log"


def write_log(folder: RunFolder) -> None:
    """Write `search.log` from the run's config and journal."""
    text = "\n".join(lines(folder)) + "\n"
    with files.atomic_write(folder.path / NAME) as scratch:
        scratch.write_text(text, encoding="utf-8")


def lines(folder: RunFolder) -> Iterator[str]:
    """Settings, losses, temperatures and preferences in the order of the run."""
    for path, value, _ in described(folder.config()):
        yield f"{path} = {value}"
    entries = journal.read(folder.metrics)
    matrices = {frame.step: frame for frame in read_frames(RunJournal("", "", entries))}
    for entry in entries:
        if entry["kind"] == "train":
            yield _train(entry)
            if entry["step"] in matrices:
                yield from _matrix(matrices[entry["step"]])
        elif entry["kind"] == "valid":
            yield _valid(entry)
        else:
            yield f"step {entry['step']}: {entry.get('what')}"


def _train(entry: Mapping[str, Any]) -> str:
    nats = entry.get("nats_per_token")
    words = [f"step {entry['step']}", f"epoch {format_number(entry.get('epoch'), '.2f')}"]
    if nats is not None:
        words += [f"loss {nats:.4f}", f"perplexity {units.perplexity(nats, 1):.2f}"]
    names = {"tau": ".3f", "entropy": ".3f", "cost": ".3f", "price": ".4f", "lr": ".2e"}
    words += [f"{x} {format_number(entry[x], form)}" for x, form in names.items() if x in entry]
    return "  ".join(words)


def _valid(entry: Mapping[str, Any]) -> str:
    loss, perplexity, bits = (
        format_number(entry.get(name), form)
        for name, form in (
            ("nats_per_token", ".4f"), ("perplexity_per_token", ".2f"), ("bits_per_byte", ".4f"),
        )
    )  # fmt: skip
    return (
        f"step {entry['step']}  valid  loss {loss}  perplexity {perplexity} per token  "
        f"{bits} bits per byte"
    )


def _matrix(frame: Frame) -> Iterator[str]:
    for letter, row in frame.rows.items():
        name = BLOCKS[letter].title if letter in BLOCKS else letter
        yield f"    {name:<26}" + " ".join(f"{share:.2f}" for share in row)


RECIPE = "recipe"
"""The file of the derived run in the folder of the search."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """How much may be spent, and in which currency."""

    share: float
    """Of the baseline's cost."""
    currency: Currency = "time"
    regime: Regime = "train"

    def __post_init__(self) -> None:
        if not 0 < self.share < math.inf:
            raise UserError(f"a budget is a share of the baseline's cost, not {self.share}")


def add_budget(
    run: RunConfig[SupernetConfig], budget: Budget, hardware: Hardware
) -> RunConfig[SupernetConfig]:
    """The same search with a budget and the costs of its blocks."""
    c = run.model
    found = block_costs(run, c.all_letters, hardware, budget.currency, budget.regime)
    costs = tuple(round(found.blocks[letter], 6) for letter in c.search.candidates)
    fixed = round(found.fixed, 6)
    try:
        search = replace(c.search, costs=costs, fixed_cost=fixed, budget=budget.share)
        return replace(run, model=replace(c, search=search))
    except ValueError as problem:
        raise UserError(f"{problem}; {_cost_list(found)}") from None


def search(
    run: RunConfig, path: Path, options: TrainOptions, budget: Budget | None = None
) -> tuple[int, dict[str, Any]]:
    """Search into `path`: the signal that ended it early or 0, and what was found."""
    run = supernet_run(run)
    check_trainable(run)
    _check_outputs(path)
    hardware = device.pick(options.device, run.train.precision)
    if budget is not None and not options.resume:
        # The softmax is part of the cost, and its width depends on the text.
        tokens = prepare(run.data, options.source, progress=options.progress)
        run = add_budget(for_vocab(run, tokens.vocab.size), budget, hardware)
    signal = train(run, path, options)
    folder = open_run(path)
    if budget is not None and budget.currency == "time" and not options.resume:
        folder.write("costs", cost_table(run, run.model.all_letters, hardware))
    try:
        return signal, conclude(folder)
    except UserError:
        # A search that was interrupted may not have found anything yet; it can be resumed.
        if not signal:
            raise
        return signal, {}


def _check_outputs(path: Path) -> None:
    """Refuse folders in the place of files that are written only after hours of search."""
    for name in (NAME, f"{RECIPE}.json"):
        if (path / name).is_dir():
            raise UserError(f"{path / name} is a folder; remove it, or change --out")


def bench_cost(run: RunConfig, hardware: Hardware, stacks: int) -> dict[str, Any]:
    """The candidates' times in every regime, and how far random stacks are from their sum."""
    run = supernet_run(run)
    c = run.model
    if stacks < 1:
        raise UserError(f"stacks must be at least 1, not {stacks}")
    letters, slots = c.all_letters, len(c.letters)
    table = cost_table(run, letters, hardware)
    equal = dict.fromkeys(letters, 1.0)
    drawn = [random_pattern(slots, equal, slots, seed=seed) for seed in range(stacks)]
    return {"regimes": table["regimes"], **additivity(run, letters, drawn, hardware)}


def conclude(folder: RunFolder) -> dict[str, Any]:
    """Write the log, which needs no result; then the derived recipe and its figures."""
    write_log(folder)
    derived, c = derive(folder), searched(folder)
    folder.write(RECIPE, to_json(derived))
    pattern = derived.model.pattern
    found: dict[str, Any] = {"pattern": pattern, "recipe": str(folder.path / f"{RECIPE}.json")}
    found |= explain_pattern(folder, pattern)
    if (share := share_of_baseline(c, pattern)) is not None:
        found["cost"] = share
    if folder.metrics.exists():
        (history,) = read_journals([folder.path])
        found["calm_since_step"] = calm_since(read_frames(history), c.search.stable)
    folder.note_results({"search": found})
    return found


def draw(folder: RunFolder, path: Path | None = None, *, svg: bool = False) -> list[Path]:
    """The last matrix, the film of all, and the curves of cooling."""
    (history,) = read_journals([folder.path])
    found = read_frames(history)
    if not found:
        raise UserError(f"the journal of {folder.path} has no preferences; is it a search?")
    target = path or folder.plots / "pi.png"
    written = save_figure(draw_pi(found[-1], history.name, history.origin), target, svg=svg)
    written += save_figure(
        draw_cooling(history), target.with_stem(f"{target.stem}-cooling"), svg=svg
    )
    return [*written, save_animation(history, target.with_suffix(".gif"))]


def _cost_list(found: BlockCosts) -> str:
    each = ", ".join(f"{letter} {cost:.4g}" for letter, cost in found.blocks.items())
    return f"{found.unit}: {found.fixed:.4g} before any block, {each}"
