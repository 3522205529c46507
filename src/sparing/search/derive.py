"""From a finished search to a network: its pattern, and the run that retrains it."""

import math
from dataclasses import replace
from typing import Any, cast

import torch

from sparing.device import Hardware
from sparing.errors import UserError
from sparing.models.stack.config import BLOCKS, StackConfig
from sparing.models.stack.patterns import (
    IDENTITY,
    LogProbs,
    cost_of,
    fill_identities,
    likeliest_pattern,
)
from sparing.models.supernet.config import SupernetConfig
from sparing.models.supernet.model import Supernet
from sparing.plot.search import read_frames
from sparing.plot.series import read_journals
from sparing.runs.config import RunConfig
from sparing.runs.folder import RunFolder, load_model
from sparing.search.cost import as_stack

CPU = Hardware(torch.device("cpu"), "float32")
EVEN = 1e-6
"""Largest difference of probabilities that stand for equal preferences, given rounding."""


def searched(folder: RunFolder) -> SupernetConfig:
    """The settings of a search; a run that is not a search is refused."""
    found = folder.config()
    if not isinstance(found.model, SupernetConfig):
        raise UserError(f"run {folder.path} is a {found.family}, not a search")
    return found.model


def derive_pattern(folder: RunFolder, name: str = "last") -> str:
    """The most probable pattern that fits the budget and spends it, without its identities."""
    c, log_probs = searched(folder), _log_probs(folder, name)
    limit = None if c.search.budget is None else c.cost_limit
    costs = c.search.costs_by_letter if c.search.costs else {}
    pattern = likeliest_pattern(log_probs, costs, limit)
    if limit is not None:
        pattern = fill_identities(pattern, log_probs, costs, limit)
    kept = pattern.replace(IDENTITY, "")
    if not kept:
        raise UserError(f"the search in {folder.path} ended with identities alone; search longer")
    return kept


def explain_pattern(folder: RunFolder, pattern: str, name: str = "last") -> dict[str, Any]:
    """Name the blocks of a derived pattern, and say why it is not the favourites of the slots."""
    c, log_probs = searched(folder), _log_probs(folder, name)
    favourites = likeliest_pattern(log_probs, {})
    found: dict[str, Any] = {
        "blocks": {letter: BLOCKS[letter].title for letter in dict.fromkeys(pattern)},
        "favourites": favourites,
    }
    if c.search.budget is None or favourites.replace(IDENTITY, "") == pattern:
        return found
    share = share_of_baseline(c, favourites) or 0.0
    if share > c.search.budget:
        why = f"the favourites cost {share:.0%} of the baseline, more than the budget of "
        why += f"{c.search.budget:.0%}; this is the likeliest pattern that fits"
    else:
        why = "the favourites leave a part of the budget; it went to the next likeliest blocks"
    return {**found, "why_not_favourites": why}


def _log_probs(folder: RunFolder, name: str) -> LogProbs:
    """The preferences in a checkpoint, slot by slot.

    Usually the last checkpoint, not the best: the valid loss of a super-net says nothing about
    them. Without checkpoints they are read from the last entry of the journal.
    """
    stored = name != "last" or any(folder.checkpoints.glob("*"))
    log_probs: LogProbs
    if stored or not (last := _last_in_journal(folder)):
        model = load_model(folder, CPU, name)
        assert isinstance(model, Supernet)
        learned, log_probs = model.has_preferences, model.log_probs()
    else:
        log_probs = [{letter: _log(pi) for letter, pi in slot.items()} for slot in last]
        learned = any(max(slot.values()) - min(slot.values()) > EVEN for slot in last)
    if not learned:
        raise UserError(
            f"the search in {folder.path} ended before any preference was learned; search longer"
        )
    return log_probs


def _last_in_journal(folder: RunFolder) -> list[dict[str, float]]:
    """The last probabilities in the journal, slot by slot; empty where it has none."""
    if not folder.metrics.exists():
        return []
    (history,) = read_journals([folder.path])
    if not (every := read_frames(history)):
        return []
    last, steps = every[-1], _steps(folder)
    if steps is None:
        raise UserError(
            f"the search in {folder.path} has not finished; continue it with `search --resume`"
        )
    if steps - last.step >= folder.config().train.log_every:
        end = f"ends at step {last.step}, the search at {steps}"
        raise UserError(f"the journal of {folder.path} {end}: what was found is not in it")
    found = [dict(zip(last.rows, pi, strict=True)) for pi in zip(*last.rows.values(), strict=True)]
    c = searched(folder)
    if set(last.rows) != set(c.search.candidates) or len(found) != len(c.letters):
        raise UserError(f"the journal of {folder.path} is that of another search")
    return found


def _steps(folder: RunFolder) -> int | None:
    """The step at which the search ended; None before that."""
    return folder.results().get("training", {}).get("steps")


def _log(probability: float) -> float:
    return math.log(max(probability, torch.finfo(torch.float32).tiny))


def derive(
    folder: RunFolder, into: RunConfig | None = None, name: str = "last"
) -> RunConfig[StackConfig]:
    """The run that trains the derived network from scratch.

    It has the settings of the search, or those of `into` with its pattern replaced.
    """
    pattern = derive_pattern(folder, name)
    if into is None:
        run = supernet_run(folder.config())
        return replace(as_stack(run, pattern), recipe=f"{run.recipe}_derived")
    stack = stack_run(into)
    return replace(stack, model=replace(stack.model, pattern=pattern))


def supernet_run(run: RunConfig) -> RunConfig[SupernetConfig]:
    """The same run, known to be a search; others are refused."""
    if not isinstance(run.model, SupernetConfig):
        raise UserError(f"recipe {run.recipe} is not a search; see `sparing recipes`")
    return cast("RunConfig[SupernetConfig]", run)


def stack_run(run: RunConfig) -> RunConfig[StackConfig]:
    """The same run, known to be a stack whose blocks can be replaced; others are refused."""
    if not isinstance(run.model, StackConfig) or isinstance(run.model, SupernetConfig):
        raise UserError(f"recipe {run.recipe} is not a stack; its blocks cannot be replaced")
    if run.model.rounds > 1:
        what = f"recipe {run.recipe} passes {run.model.rounds} times through some of its blocks"
        raise UserError(f"{what}, and a searched pattern has no brackets; set model.rounds=1")
    return cast("RunConfig[StackConfig]", run)


def share_of_baseline(c: SupernetConfig, pattern: str) -> float | None:
    """Cost of a pattern as a share of the baseline's; none where the search had no costs."""
    search = c.search
    if not search.costs:
        return None
    baseline = search.fixed_cost + cost_of(c.letters, search.costs_by_letter)
    return (search.fixed_cost + cost_of(pattern, search.costs_by_letter)) / baseline
