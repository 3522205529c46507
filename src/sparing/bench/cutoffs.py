"""How long optimal cut-offs of an adaptive softmax take to find."""

import time
from typing import Any

import numpy as np

from sparing.data.cutoffs import CutoffConfig, Ints, optimal
from sparing.errors import UserError
from sparing.units import counted

TOKENS = 103_000_000
"""Of the made-up text: as many as WikiText-103 has."""


def zipf(words: int) -> Ints:
    """Counts of words whose frequency is one over their rank, each seen at least once."""
    ranks = np.arange(1, words + 1)
    shares = 1 / ranks / (1 / ranks).sum()
    counts: Ints = np.maximum(1, np.round(TOKENS * shares)).astype(np.int64)
    return counts


def bench_cutoffs(
    counts: Ints, *, most: int = 3, turns: int = 3, dim: int = 512
) -> dict[str, dict[str, Any]]:
    """Time one to `most` clusters with cuts anywhere, the hardest case; the least of `turns`."""
    if turns < 1 or most < 1:
        raise UserError("need at least one turn and one cluster")
    found = {}
    for clusters in range(1, most + 1):
        config = CutoffConfig(clusters=clusters, dim=dim, align=1)
        durations = []
        for _ in range(turns):
            started_at = time.perf_counter()
            cuts = optimal(counts, config)
            durations.append(time.perf_counter() - started_at)
        found[counted(clusters, "cluster")] = {
            "elapsed_s": min(durations),
            "cutoffs": list(cuts.cutoffs),
            "of_plain": cuts.cost / cuts.plain,
        }
    return found
