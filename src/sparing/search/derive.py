"""From a finished search to a discrete network: its pattern, and the run that retrains it."""

import math
from dataclasses import replace

import torch

from sparing.device import Hardware
from sparing.errors import UserError
from sparing.models.stack.config import StackConfig
from sparing.models.stack.patterns import IDLE, cost_of, filled, likeliest
from sparing.models.supernet.config import SupernetConfig
from sparing.models.supernet.model import Supernet
from sparing.plot.search import read_frames
from sparing.plot.series import read_journals
from sparing.runs.config import RunConfig
from sparing.runs.folder import RunFolder, load_model
from sparing.search.cost import as_stack

CPU = Hardware(torch.device("cpu"), "float32")
EVEN = 1e-6
"""By what probabilities differ that were rounded on their way from equal preferences."""


def searched(folder: RunFolder) -> SupernetConfig:
    """The settings of a search; refused where the run is none."""
    found = folder.config()
    if not isinstance(found.model, SupernetConfig):
        raise UserError(f"run {folder.path} is no search but a {found.family}; nothing to derive")
    return found.model


def derive_pattern(folder: RunFolder, name: str = "last") -> str:
    """The most probable pattern that fits the budget and spends it, identities left out."""
    c, chances = searched(folder), _chances(folder, name)
    ceiling, costs = None if c.budget is None else c.ceiling, c.price_list if c.costs else {}
    pattern = likeliest(chances, costs, ceiling)
    if ceiling is not None:
        pattern = filled(pattern, chances, costs, ceiling)
    kept = pattern.replace(IDLE, "")
    if not kept:
        raise UserError(f"the search in {folder.path} ended with identities alone; search longer")
    return kept


def _chances(folder: RunFolder, name: str) -> list[dict[str, float]]:
    """The preferences in a checkpoint, slot by slot, as logarithms.

    Usually the last, not the best: a super-net's valid loss says nothing about them. A folder that
    was sent without its weights tells them in its journal, as they were at its last entry.
    """
    stored = name != "last" or any(folder.checkpoints.glob("*"))
    if stored or not (told := _told(folder)):
        model = load_model(folder, CPU, name)
        assert isinstance(model, Supernet)
        taught, chances = model.taught, model.chances()
    else:
        chances = [{letter: _log(pi) for letter, pi in slot.items()} for slot in told]
        taught = any(max(slot.values()) - min(slot.values()) > EVEN for slot in told)
    if not taught:
        raise UserError(
            f"the search in {folder.path} ended before any preference was learnt; search longer"
        )
    return chances


def _told(folder: RunFolder) -> list[dict[str, float]]:
    """The last probabilities in the journal, slot by slot; none where it tells of none."""
    if not folder.metrics.exists():
        return []
    (diary,) = read_journals([folder.path])
    if not (every := read_frames(diary)):
        return []
    last, steps = every[-1], _steps(folder)
    if steps is None:
        raise UserError(
            f"the search in {folder.path} has not come to its end; go on by `search --resume`"
        )
    if steps - last.step >= folder.config().train.log_every:
        end = f"ends at step {last.step}, the search at {steps}"
        raise UserError(f"the journal of {folder.path} {end}: it does not tell what was found")
    told = [dict(zip(last.rows, pi, strict=True)) for pi in zip(*last.rows.values(), strict=True)]
    c = searched(folder)
    if set(last.rows) != set(c.candidates) or len(told) != len(c.letters):
        raise UserError(f"the journal of {folder.path} is that of another search")
    return told


def _steps(folder: RunFolder) -> int | None:
    """At which step the search ended; None before that."""
    training = folder.results().get("training")
    steps = training.get("steps") if isinstance(training, dict) else None
    return steps if isinstance(steps, int) else None


def _log(probability: float) -> float:
    return math.log(max(probability, torch.finfo(torch.float32).tiny))


def derive(folder: RunFolder, into: RunConfig | None = None, name: str = "last") -> RunConfig:
    """The run that trains the derived network from scratch.

    It has the search's own settings, or those of `into`, whose pattern is replaced.
    """
    pattern, run = derive_pattern(folder, name), folder.config()
    if into is None:
        return replace(as_stack(run, pattern), recipe=f"{run.recipe}_derived")
    refuse_unless_stack(into)
    return replace(into, model=replace(into.model, pattern=pattern))


def refuse_unless_stack(run: RunConfig) -> None:
    """Refuse a run whose blocks cannot be replaced by others."""
    if not isinstance(run.model, StackConfig) or isinstance(run.model, SupernetConfig):
        raise UserError(f"recipe {run.recipe} is no stack; its blocks cannot be replaced")
    if run.model.rounds > 1:
        what = f"recipe {run.recipe} goes {run.model.rounds} rounds through some of its blocks"
        raise UserError(f"{what}, and a searched pattern has no brackets; set model.rounds=1")


def share_of_budget(c: SupernetConfig, pattern: str) -> float | None:
    """Cost of a pattern as a share of the network the search started against."""
    if not c.costs:
        return None
    whole = c.fixed_cost + cost_of(c.letters, c.price_list)
    return (c.fixed_cost + cost_of(pattern, c.price_list)) / whole
