"""What a block costs on this machine: measured, cached, and checked for additivity.

Whole training steps of mixed stacks are timed. The time of a candidate is what each one adds to a
step, by least squares, so it includes kernel launches and the optimizer. FLOPs would rank blocks
wrongly: an LSTM waits for itself, attention with cached keys does not.
"""

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any, Literal, TypedDict, cast

import torch

from sparing import __version__, config, files
from sparing.bench.timing import Task, quartiles, time_in_turns
from sparing.bench.train import Stepper
from sparing.data.textfile import cache_dir
from sparing.device import Hardware
from sparing.documents import read_document
from sparing.errors import UserError
from sparing.evaluation.memory import fill_memory
from sparing.models.cost import cost
from sparing.models.stack.config import StackConfig
from sparing.models.stack.model import Stack
from sparing.models.stack.patterns import IDENTITY, cost_of
from sparing.runs.build import build_model, prepare_for
from sparing.runs.config import RunConfig

Regime = Literal["train", "prefill", "decode"]
Currency = Literal["time", "parameters", "flops"]
REGIMES: tuple[Regime, ...] = ("train", "prefill", "decode")
FORMAT = 2
"""In format 1, `prefill` and `decode` were timed before the memory of attention with learned spans
was full."""
RICH, RANDOM = 2, 4
"""Stacks for each candidate in which it has half the slots, and entirely random stacks. A stack of
one kind alone would cost less: the optimizer works shape by shape."""
TURNS = 6
LAPS = 3


class Times(TypedDict):
    """Milliseconds in one regime."""

    fixed_ms: float
    blocks_ms: dict[str, float]


class Regimes(TypedDict):
    """Milliseconds in every regime."""

    train: Times
    prefill: Times
    decode: Times


class CostTable(TypedDict):
    """A measured table of times, as stored."""

    format: int
    about: dict[str, Any]
    regimes: Regimes


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockCosts:
    """What every candidate adds to a network, in one currency."""

    unit: str
    fixed: float
    """Cost of everything that is not a block."""
    blocks: Mapping[str, float]
    """By letter; the identity is free."""

    def of(self, pattern: str) -> float:
        """Cost of a whole network."""
        return self.fixed + cost_of("".join(pattern.split()), self.blocks)


def as_stack(run: RunConfig[StackConfig], pattern: str) -> RunConfig[StackConfig]:
    """The same run as a plain stack of this pattern."""
    return replace(run, family="stack", model=replace(run.model.plain_stack(), pattern=pattern))


def block_costs(
    run: RunConfig[StackConfig],
    letters: str,
    hardware: Hardware,
    currency: Currency,
    regime: Regime = "train",
) -> BlockCosts:
    """What each letter costs in a network with this run's settings."""
    if currency == "time":
        table = cost_table(run, letters, hardware)
        found = table["regimes"][regime]
        return BlockCosts(unit=f"ms, {regime}", fixed=found["fixed_ms"], blocks=found["blocks_ms"])
    stack = run.model.plain_stack()
    with torch.device("meta"):
        blocks = {letter: stack.build_block(letter) for letter in letters}
        bare = Stack(replace(stack, pattern=IDENTITY))
    if currency == "flops":
        each = {letter: block.flops_per_token() for letter, block in blocks.items()}
        return BlockCosts(unit="FLOPs per token", fixed=bare.flops_per_token(), blocks=each)
    each = {x: float(sum(p.numel() for p in block.parameters())) for x, block in blocks.items()}
    fixed = float(cost(bare).parameters_training)
    return BlockCosts(unit="parameters", fixed=fixed, blocks=each)


def cost_table(run: RunConfig[StackConfig], letters: str, hardware: Hardware) -> CostTable:
    """The table of times; from the cache where this machine has measured this shape before."""
    about = _about(run, letters, hardware)
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]
    path = cache_dir() / "costs" / f"{digest}.json"
    if stored := _stored_table(path, about):
        return stored
    regimes = {regime: _table(run, letters, hardware, regime) for regime in REGIMES}
    table: CostTable = {"format": FORMAT, "about": about, "regimes": cast("Regimes", regimes)}
    files.write_json(path, table)
    return table


def _stored_table(path: Path, about: Mapping[str, Any]) -> CostTable | None:
    """A table measured before; None if there is none, or one that is damaged."""
    try:
        found = read_document(path, CostTable)
    except UserError:
        return None
    tables = [found["regimes"][regime]["blocks_ms"].keys() for regime in REGIMES]
    whole = all(letters >= {*about["letters"]} for letters in tables)
    current = found["format"] == FORMAT and found["about"] == about
    return found if whole and current else None


def timed_patterns(
    run: RunConfig[StackConfig],
    patterns: Sequence[str],
    hardware: Hardware,
    regime: Regime = "train",
) -> dict[str, float]:
    """Milliseconds of whole networks, timed in turns so that the machine is the same for all.

    The least of all turns: other programs can only make it slower.
    """
    tasks = {pattern: _task(as_stack(run, pattern), hardware, regime) for pattern in patterns}
    durations = time_in_turns(tasks, TURNS, hardware, laps=LAPS)
    return {pattern: 1000 * quartiles(each).least for pattern, each in durations.items()}


def additivity(
    run: RunConfig[StackConfig], letters: str, patterns: Sequence[str], hardware: Hardware
) -> dict[str, Any]:
    """Training time of stacks as measured and as predicted from other stacks."""
    known = sample_stacks("".join(sorted(set(letters))), len(run.model.letters))
    fresh = [pattern for pattern in dict.fromkeys(patterns) if pattern not in known]
    if not fresh:
        raise UserError("no stacks are left to check the sum on; ask for more of them")
    times = timed_patterns(run, [*known, *fresh], hardware)
    fixed, each = fit_costs(
        {pattern: times[pattern] for pattern in known}, sorted({*letters} - {IDENTITY})
    )
    table = BlockCosts(unit="ms, train", fixed=fixed, blocks={**each, IDENTITY: 0.0})
    rows = [
        {"pattern": pattern, "measured_ms": times[pattern], "predicted_ms": table.of(pattern)}
        for pattern in fresh
    ]
    errors = [abs(table.of(pattern) / times[pattern] - 1) for pattern in fresh]
    return {"stacks": rows, "mean_error": sum(errors) / len(errors), "worst_error": max(errors)}


def _about(run: RunConfig[StackConfig], letters: str, hardware: Hardware) -> dict[str, Any]:
    """Everything on which a time depends."""
    shape = config.to_json(run.model.plain_stack())
    del shape["pattern"]
    train, evaluate = config.to_json(run.train), config.to_json(run.evaluate)
    work = {name: train[name] for name in ("batch", "segment", "micro_batches", "compiled")}
    return {
        "model": shape,
        "train": work,
        "evaluate": evaluate,
        "optim": config.to_json(run.optim),
        "letters": "".join(sorted(set(letters))),
        "slots": len(run.model.letters),
        "device": hardware.describe(),
        "precision": hardware.precision,
        "torch": torch.__version__,
        "sparing": __version__,
    }


def _table(run: RunConfig[StackConfig], letters: str, hardware: Hardware, regime: Regime) -> Times:
    others = sorted(set(letters) - {IDENTITY})
    patterns = sample_stacks("".join(sorted(set(letters))), len(run.model.letters))
    fixed, each = fit_costs(timed_patterns(run, patterns, hardware, regime), others)
    free = {IDENTITY: 0.0} if IDENTITY in letters else {}
    return {"fixed_ms": fixed, "blocks_ms": {**each, **free}}


def sample_stacks(letters: str, slots: int, seed: int = 0) -> list[str]:
    """Stacks from which the costs of candidates are fitted: rich in each of them, and random."""
    draw, found = random.Random(seed), []
    for letter in [*(RICH * letters), *(RANDOM * [""])]:
        half = letter * (slots // 2)
        rest = [draw.choice(letters) for _ in range(slots - len(half))]
        found.append("".join(draw.sample([*half, *rest], slots)))
    return list(dict.fromkeys(found))


def fit_costs(times: Mapping[str, float], letters: Sequence[str]) -> tuple[float, dict[str, float]]:
    """The fixed cost and the cost of each letter whose sums are nearest to `times`; none below 0.

    Errors are relative: a short stack counts as much as a long one.
    """
    used = ["", *letters]
    while True:
        rows = [[float(pattern.count(x)) if x else 1.0 for x in used] for pattern in times]
        scale = torch.tensor(list(times.values()), dtype=torch.float64)
        matrix = torch.tensor(rows, dtype=torch.float64) / scale[:, None]
        ones = torch.ones(len(times), 1, dtype=torch.float64)
        solved = torch.linalg.lstsq(matrix, ones, driver="gelsd").solution.flatten().tolist()
        found = dict(zip(used, solved, strict=True))
        below = [letter for letter in used if found[letter] < 0]
        if not below:
            return found.get("", 0.0), {letter: found.get(letter, 0.0) for letter in letters}
        used.remove(min(below, key=lambda letter: found[letter]))


def _task(run: RunConfig, hardware: Hardware, regime: Regime) -> Task:
    if regime != "train":
        return _Reader(run, hardware, one_token=regime == "decode")
    stepper = Stepper(run, hardware)
    stepper.warm_up()
    return stepper


class _Reader:
    """Reads with a full memory and without gradients, a segment or one token at a time."""

    def __init__(self, run: RunConfig, hardware: Hardware, *, one_token: bool) -> None:
        model = build_model(run, hardware.device).eval()
        self.model = prepare_for(hardware, model, compiled=run.train.compiled)
        self.hardware = hardware
        batch, length = (1, 1) if one_token else (run.evaluate.batch, run.evaluate.segment)
        shape, size = (batch, run.evaluate.segment), run.model.vocab_size
        tokens_BT = torch.randint(size, shape, device=hardware.device)
        with torch.no_grad(), hardware.autocast():
            empty = self.model.initial_state(batch, inference=True)
            self.state, _ = fill_memory(self.model, repeat(tokens_BT), empty)
        self.tokens_BT = tokens_BT[:, :length]
        self()

    def __call__(self) -> None:
        self.state = self._read(self.tokens_BT)

    def _read(self, tokens_BT: torch.Tensor) -> Any:
        with torch.no_grad(), self.hardware.autocast():
            out = self.model(tokens_BT, self.state)
            self.model.head.logits(out.hidden_BTD[:, -1])
        return out.state
