"""What a block costs on this machine: measured in place, kept, and checked for adding up.

Whole steps of mixed stacks are timed and a candidate's time is what a step takes longer for each of
it, by least squares; so it holds launches, optimizer and all. Counting FLOPs instead would rank
blocks wrongly: an LSTM waits, an attention with cached keys does not.
"""

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from sparing import __version__, config, files
from sparing.bench.timing import Task, interleaved, spread
from sparing.bench.train import Stepper
from sparing.data.fetch import home
from sparing.device import Hardware
from sparing.errors import UserError
from sparing.models import FAMILIES
from sparing.models.api import size_bytes
from sparing.models.cost import cost
from sparing.models.stack.config import StackConfig, branch
from sparing.models.stack.model import Stack
from sparing.models.stack.patterns import IDLE, cost_of
from sparing.runs.build import build_model, prepare_for
from sparing.runs.config import RunConfig

Regime = Literal["train", "prefill", "decode"]
Currency = Literal["time", "parameters", "flops"]
REGIMES: tuple[Regime, ...] = ("train", "prefill", "decode")
FORMAT = 1
RICH, RANDOM = 2, 4
"""Stacks in which a candidate has half the slots, for every candidate; and stacks of pure chance.
Of one kind alone they would cost less: an optimizer that works shape by shape has less to do."""
TURNS = 6
LAPS = 3
PATIENCE = 64
"""Segments after which a memory that still grows is taken as it is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prices:
    """What candidates cost, in one currency."""

    unit: str
    fixed: float
    """What everything that is not a block costs."""
    blocks: Mapping[str, float]
    """By letter; the identity is free."""

    def of(self, pattern: str) -> float:
        """A whole network's."""
        return self.fixed + cost_of("".join(pattern.split()), self.blocks)


def as_stack(run: RunConfig, pattern: str) -> RunConfig:
    """The same run as a plain stack of this pattern."""
    own = {name: getattr(run.model, name) for name in config.to_json(_plain(run))}
    return replace(run, family="stack", model=StackConfig(**{**own, "pattern": pattern}))


def prices(
    run: RunConfig, letters: str, hardware: Hardware, currency: Currency, regime: Regime = "train"
) -> Prices:
    """What each letter costs in a network with this run's settings."""
    if currency == "time":
        table = measured(run, letters, hardware)
        found = table["regimes"][regime]
        return Prices(unit=f"ms, {regime}", fixed=found["fixed_ms"], blocks=found["blocks_ms"])
    with torch.device("meta"):
        blocks = {letter: branch(letter, _plain(run)) for letter in letters}
        bare = Stack(replace(_plain(run), pattern=IDLE))
    if currency == "flops":
        each = {letter: block.flops_per_token() for letter, block in blocks.items()}
        return Prices(unit="FLOPs per token", fixed=bare.flops_per_token(), blocks=each)
    each = {x: float(sum(p.numel() for p in block.parameters())) for x, block in blocks.items()}
    whole = float(cost(bare).parameters_training)
    return Prices(unit="parameters", fixed=whole, blocks=each)


def measured(run: RunConfig, letters: str, hardware: Hardware) -> dict[str, Any]:
    """The table of times; from the shelf where this machine has measured this shape before."""
    about = _about(run, letters, hardware)
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]
    path = home() / "costs" / f"{digest}.json"
    if path.exists():
        stored = files.read_object(path)
        if stored.get("about") == about:
            return stored
    regimes = {regime: _table(run, letters, hardware, regime) for regime in REGIMES}
    table = {"format": FORMAT, "about": about, "regimes": regimes}
    files.write_json(path, table)
    return table


def timed_patterns(
    run: RunConfig, patterns: Sequence[str], hardware: Hardware, regime: Regime = "train"
) -> dict[str, float]:
    """Milliseconds of whole networks, taken in turns so that all meet the same machine.

    The least of all turns: what others want of the machine only ever adds to it.
    """
    tasks = {pattern: _task(as_stack(run, pattern), hardware, regime) for pattern in patterns}
    durations = interleaved(tasks, TURNS, hardware, laps=LAPS)
    return {pattern: 1000 * spread(each).least for pattern, each in durations.items()}


def additivity(
    run: RunConfig, letters: str, patterns: Sequence[str], hardware: Hardware
) -> dict[str, Any]:
    """Training time of stacks as measured and as foretold from others, timed in the same turns."""
    known = sample("".join(sorted(set(letters))), len(_plain(run).letters))
    fresh = [pattern for pattern in dict.fromkeys(patterns) if pattern not in known]
    if not fresh:
        raise UserError("there are no stacks left to check the sum on; ask for more of them")
    times = timed_patterns(run, [*known, *fresh], hardware)
    fixed, each = fitted(
        {pattern: times[pattern] for pattern in known}, sorted({*letters} - {IDLE})
    )
    table = Prices(unit="ms, train", fixed=fixed, blocks={**each, IDLE: 0.0})
    rows = [
        {"pattern": pattern, "measured_ms": times[pattern], "predicted_ms": table.of(pattern)}
        for pattern in fresh
    ]
    errors = [abs(table.of(pattern) / times[pattern] - 1) for pattern in fresh]
    return {"stacks": rows, "mean_error": sum(errors) / len(errors), "worst_error": max(errors)}


def _plain(run: RunConfig) -> StackConfig:
    """A super-net's or a stack's settings as a stack's."""
    assert isinstance(run.model, StackConfig)
    names = FAMILIES["stack"].config.__dataclass_fields__
    return StackConfig(**{name: getattr(run.model, name) for name in names})


def _about(run: RunConfig, letters: str, hardware: Hardware) -> dict[str, Any]:
    """Everything a time depends on."""
    shape = config.to_json(_plain(run))
    del shape["pattern"]
    train, evaluate = config.to_json(run.train), config.to_json(run.evaluate)
    work = {name: train[name] for name in ("batch", "segment", "micro_batches", "compiled")}
    return {
        "model": shape,
        "train": work,
        "evaluate": evaluate,
        "optim": config.to_json(run.optim),
        "letters": "".join(sorted(set(letters))),
        "slots": len(_plain(run).letters),
        "device": hardware.describe(),
        "precision": hardware.precision,
        "torch": torch.__version__,
        "sparing": __version__,
    }


def _table(run: RunConfig, letters: str, hardware: Hardware, regime: Regime) -> dict[str, Any]:
    others = sorted(set(letters) - {IDLE})
    patterns = sample("".join(sorted(set(letters))), len(_plain(run).letters))
    fixed, each = fitted(timed_patterns(run, patterns, hardware, regime), others)
    return {"fixed_ms": fixed, "blocks_ms": {**each, **({IDLE: 0.0} if IDLE in letters else {})}}


def sample(letters: str, slots: int, seed: int = 0) -> list[str]:
    """Stacks to tell candidates apart by: rich in each of them, and random ones."""
    draw, found = random.Random(seed), []
    for letter in [*(RICH * letters), *(RANDOM * [""])]:
        half = letter * (slots // 2)
        rest = [draw.choice(letters) for _ in range(slots - len(half))]
        found.append("".join(draw.sample([*half, *rest], slots)))
    return list(dict.fromkeys(found))


def fitted(times: Mapping[str, float], letters: Sequence[str]) -> tuple[float, dict[str, float]]:
    """What is not a block, and each letter, such that sums come nearest to `times`; none below 0.

    Errors are counted as shares: a short stack says as much as a long one.
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
    # Regularisation that draws numbers is part of a step; a loss that is not finite is not.
    stepper = Stepper(run, hardware)
    stepper.warm_up()
    return stepper


class _Reader:
    """Reads with full memory and without gradients: a segment at a time, or one token."""

    def __init__(self, run: RunConfig, hardware: Hardware, *, one_token: bool) -> None:
        model = build_model(run, hardware.device).eval()
        self.model = prepare_for(hardware, model, compiled=run.train.compiled)
        self.hardware = hardware
        batch, length = (1, 1) if one_token else (run.evaluate.batch, run.evaluate.segment)
        shape, size = (batch, run.evaluate.segment), run.model.vocab_size
        tokens_BT = torch.randint(size, shape, device=hardware.device)
        with torch.no_grad():
            self.state = self.model.initial_state(batch, inference=True)
        for _ in range(PATIENCE):
            before = size_bytes(self.state)
            self.state = self._read(tokens_BT)
            if size_bytes(self.state) == before:
                break
        self.tokens_BT = tokens_BT[:, :length]
        self()

    def __call__(self) -> None:
        self.state = self._read(self.tokens_BT)

    def _read(self, tokens_BT: torch.Tensor) -> Any:
        with torch.no_grad(), self.hardware.autocast():
            out = self.model(tokens_BT, self.state)
            self.model.head.logits(out.hidden_BTD[:, -1])
        return out.state
