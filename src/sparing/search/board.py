"""The board: searched networks, rules of thumb and random networks, all retrained the same way.

Without these controls a searched network proves nothing: any network of its cost might do as well.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparing import device
from sparing.data.tokens import prepare
from sparing.device import Hardware
from sparing.errors import UserError
from sparing.experiments.engine import Experiment, ExperimentOptions, Supplement
from sparing.experiments.leaderboard import half_range_cell, parameters_cell, valid_cell
from sparing.experiments.variants import Variant
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
from sparing.plot.figure import has_matplotlib, save_figure
from sparing.plot.search import Point, draw_pareto
from sparing.runs.build import build_model
from sparing.runs.config import RunConfig
from sparing.runs.folder import RunFolder, open_run
from sparing.runs.layout import Layout, format_number
from sparing.runs.provenance import provenance
from sparing.runs.train import TrainOptions
from sparing.search.cost import REGIMES, BlockCosts, as_stack, block_costs, timed_patterns
from sparing.search.derive import derive, searched, stack_run

RANDOM = "random, equal cost"
LEAST_DEPTH = {"par": 5, "sandwich": 4}
"""Blocks that a rule of thumb needs."""
DRAWS = 50
"""Attempts at random networks that are not on the board yet."""
BOARD = Layout(
    columns={
        "network": lambda row: str(row["name"]),
        "pattern": lambda row: str(row["pattern"]),
        "parameters": parameters_cell,
        "step ms": lambda row: f"{row['train_ms']:.2f}",
        "predicted ms": lambda row: f"{row['predicted_ms']:.2f}",
        "of baseline": lambda row: f"{row['share_of_time']:.0%}",
        "prefill ms": lambda row: f"{row['prefill_ms']:.2f}",
        "token ms": lambda row: f"{row['decode_ms']:.2f}",
        "steps": lambda row: format_number(row["steps"], ",.0f"),
        "valid bits/byte": valid_cell,
        "± seeds": half_range_cell,
        "test bits/byte": lambda row: format_number(row["test"], ".4f"),
        "test ppl/token": lambda row: format_number(row["test_perplexity"], ".2f"),
    },
    left=("network", "pattern"),
    code=("pattern",),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class BoardOptions:
    """Which networks are on the board, and how often each is trained."""

    seeds: int = 2
    """Trials per network."""
    random_networks: int = 2
    """Random networks with the cost of the first searched one."""
    train: TrainOptions
    message: Callable[[str], None]
    """Prints a line for the user."""

    def __post_init__(self) -> None:
        if self.seeds < 1 or self.random_networks < 0:
            raise UserError("a board needs at least one seed, and no fewer than 0 random networks")


@dataclass(frozen=True, slots=True)
class Network:
    """A network on the board."""

    name: str
    kind: str
    pattern: str


def board(
    searches: Sequence[Path], base: RunConfig | None, out: Path, options: BoardOptions
) -> tuple[int, dict[str, Any]]:
    """Train and test all networks; write `board.json`, `board.md` and `pareto.png` into `out`.

    Returns the signal that stopped it early, or 0, and the record. `base` gives the settings of the
    training; the first search does if it is None.
    """
    folders = [open_run(path) for path in searches]
    run = stack_run(base or derive(folders[0]))
    _refuse_unfit(run, options.train)
    hardware = device.pick(options.train.device, run.train.precision)
    # Measured for this run's shapes, which may differ from those of the search.
    costs = block_costs(run, _letters(folders), hardware, "time")
    networks = list_networks(folders, costs.blocks, options.random_networks)
    variants = [Variant(each.name, as_stack(run, each.pattern)) for each in networks]
    shared = ExperimentOptions(
        seeds=options.seeds, tested=True, train=options.train, message=options.message
    )
    experiment = Experiment(variants, out / "board.json", BOARD, shared)
    experiment.supplement = Supplement(
        facts=_facts(run, networks, costs, hardware, baseline=searched(folders[0]).letters),
        notes=_notes(networks, searched(folders[0]), options.random_networks),
        about=provenance(hardware, run.train.seed),
    )
    # The trials run in other processes, which may need all of the device's memory.
    hardware.empty_cache()
    signal, record = experiment.run()
    if not signal:
        draw_board(record, out)
    return signal, record


def list_networks(
    searches: Sequence[RunFolder], costs: Mapping[str, float], random_networks: int
) -> list[Network]:
    """Searched networks, the searches' baseline, rules of thumb and random networks, each once."""
    c = searched(searches[0])
    named = [
        Network(f"searched-{number}", "searched", derive(folder).model.letters)
        for number, folder in enumerate(searches, start=1)
    ]
    found: dict[str, Network] = {}
    for network in [*named, *_rules(c)]:
        found.setdefault(network.pattern, network)
    target, wanted = cost_of(named[0].pattern, costs), len(found) + random_networks
    competing = {letter: costs[letter] for letter in c.search.candidates}
    for seed in range(DRAWS):
        if len(found) == wanted:
            break
        drawn = random_pattern(len(c.letters), competing, target, seed=seed).replace(IDENTITY, "")
        number = random_networks - (wanted - len(found)) + 1
        found.setdefault(drawn, Network(f"random-{number}", RANDOM, drawn))
    return list(found.values())


def draw_board(record: Mapping[str, Any], out: Path) -> None:
    """Draw the finished networks of a board into `pareto.png`."""
    points = [
        Point(row["name"], row["kind"], row["train_ms"], row["valid"], row["valid_half_range"])
        for row in record["rows"]
        if row["valid"] is not None
    ]
    recipe = record["run"]["recipe"]
    about = [f"{recipe} · commit {record['commit']} · {record['device']}"]
    if points and has_matplotlib():
        figure = draw_pareto(
            points, f"Networks of {recipe}", x="milliseconds per training step", about=about
        )
        save_figure(figure, out / "pareto.png")


def _refuse_unfit(run: RunConfig, options: TrainOptions) -> None:
    """Check that the text exists before anything is measured, which takes minutes."""
    prepare(run.data, options.source, progress=options.progress)


def _letters(searches: Sequence[RunFolder]) -> str:
    return "".join(
        sorted({letter for folder in searches for letter in searched(folder).all_letters})
    )


def _notes(networks: Sequence[Network], c: SupernetConfig, wanted: int) -> list[str]:
    """Why a rule of thumb or a random network is not on the board."""
    names = {network.pattern: network.name for network in networks}
    depth, found = len(c.letters), sum(network.kind == RANDOM for network in networks)
    twins = [rule for rule in _rules(c) if rule.name not in names.values()]
    short = {name: least for name, least in LEAST_DEPTH.items() if depth < least}
    return [
        *(f"{rule.name}: the same network as {names[rule.pattern]}." for rule in twins),
        *(f"{name}: needs {least} blocks, there are {depth}." for name, least in short.items()),
        *(
            []
            if found == wanted
            else [
                f"{found} of {wanted} random networks: {DRAWS} draws gave no others of that cost."
            ]
        ),
    ]


def _rules(c: SupernetConfig) -> list[Network]:
    depth, known = len(c.letters), c.all_letters
    found = [Network("baseline", "baseline", c.letters)]
    attention = next((letter for letter in c.letters_with("attention") if letter in known), None)
    dense = next((letter for letter in c.letters_with("dense") if letter in known), None)
    if attention is None or dense is None:
        return found
    found.append(Network("interleaved", "rule", interleaved(depth, attention, dense)))
    if depth >= LEAST_DEPTH["par"]:
        found.append(Network("par", "rule", par(depth, 5, attention, dense)))
    if depth >= LEAST_DEPTH["sandwich"]:
        ends = max(1, depth // 6)
        # Pairs alone would leave a network of odd depth one block short.
        pattern = sandwich(depth // 2, ends, attention, dense) + dense * (depth % 2)
        found.append(Network("sandwich", "rule", pattern))
    return found


def _facts(
    run: RunConfig[StackConfig],
    networks: Sequence[Network],
    costs: BlockCosts,
    hardware: Hardware,
    *,
    baseline: str,
) -> dict[str, dict[str, Any]]:
    """Kind, pattern, size and measured times of every network, by its name."""
    patterns = [network.pattern for network in networks]
    times = {regime: timed_patterns(run, patterns, hardware, regime) for regime in REGIMES}
    return {
        network.name: {
            "kind": network.kind,
            "pattern": network.pattern,
            "flops_per_token": cost(
                build_model(as_stack(run, network.pattern), "meta")
            ).flops_per_token,
            **{f"{regime}_ms": found[network.pattern] for regime, found in times.items()},
            "predicted_ms": costs.of(network.pattern),
            "share_of_time": times["train"][network.pattern] / times["train"][baseline],
        }
        for network in networks
    }
