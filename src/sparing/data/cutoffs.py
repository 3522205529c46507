"""Cut-offs of an adaptive softmax (arXiv:1609.04309) that need the fewest multiply-adds.

The head holds the most frequent words and one symbol per cluster of rarer words, and is computed
for every token; a cluster only for its own tokens. Costs are multiply-adds per training token.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sparing.errors import UserError
from sparing.units import pluralize

Ints = npt.NDArray[np.int64]
Costs = npt.NDArray[Any]
"""Integers while they fit, so that equal costs compare as equal."""
CHUNK = 1 << 22
NARROW_HEAD = 2000
"""Minimum size of the head if clusters are narrower; by cost alone it would have a few dozen
words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CutoffConfig:
    """The adaptive softmax to find cut-offs for."""

    clusters: int = 3
    """Clusters of rarer words besides the head; there are as many cut-offs."""
    dim: int = 512
    """Width of the hidden vectors."""
    shrink: int = 1
    """Factor by which each cluster is narrower than the one before; above 1, hidden vectors are
    projected to its width."""
    least_head: int | None = None
    """Minimum number of words in the head. None: 1, or 2000 with narrower clusters."""
    align: int = 64
    """Rows of the head (symbols included) and of each cluster but the last: a multiple of this."""

    def __post_init__(self) -> None:
        for name in ("clusters", "dim", "shrink", "align"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.least_head is not None and self.least_head < 1:
            raise UserError(f"the head must have at least 1 word, not {self.least_head}")
        if self.dim < self.shrink**self.clusters:
            raise UserError(
                f"with shrink {self.shrink}, dim {self.dim} leaves no width for cluster "
                f"{self.clusters}; lower shrink or clusters"
            )

    @property
    def head(self) -> int:
        """Minimum number of words in the head, with the default applied."""
        if self.least_head is not None:
            return self.least_head
        return 1 if self.shrink == 1 else NARROW_HEAD

    def width(self, cluster: int) -> int:
        """Width of a cluster; the head is cluster 0."""
        return self.dim // int(self.shrink**cluster)

    def projection(self, cluster: int) -> int:
        """Multiply-adds to project a hidden vector to a cluster's width."""
        return 0 if self.shrink == 1 else self.dim * self.width(cluster)


class Cuts(NamedTuple):
    """Cut-offs and their cost."""

    cutoffs: tuple[int, ...]
    cost: float
    """Multiply-adds per token."""
    plain: float
    """Multiply-adds per token of a plain softmax."""


def count_ids(ids: npt.NDArray[Any], words: int) -> Ints:
    """Count how often each of `words` ids occurs."""
    counts = np.zeros(words, np.int64)
    for begin in range(0, len(ids), CHUNK):
        counts += np.bincount(ids[begin : begin + CHUNK], minlength=words)
    return counts


def cutoff_cost(
    counts: Sequence[int] | Ints, cutoffs: Sequence[int], config: CutoffConfig
) -> float:
    """Multiply-adds per token of an adaptive softmax over words with these counts."""
    counts = _check_counts(counts)
    edges = [0, *cutoffs, len(counts)]
    total = config.dim * (edges[1] + len(cutoffs)) + config.projection(0)
    share = [counts[low:high].sum() / counts.sum() for low, high in pairwise(edges)]
    for cluster, (low, high) in enumerate(pairwise(edges[1:]), start=1):
        inside = config.width(cluster) * (high - low) + config.projection(cluster)
        total += share[cluster] * inside
    return float(total)


def optimal_cutoffs(counts: Sequence[int] | Ints, config: CutoffConfig) -> Cuts:
    """Find the cheapest cut-offs; of equally cheap ones, those whose last cut comes first.

    Words keep their order, which should be by falling frequency. Dynamic programming over
    clusters: since the cost of a cluster is Monge, the best start of a cluster never moves back as
    its end moves on, so K clusters over N words take O(K N log N) (docs/data.md).
    """
    counts = _check_counts(counts)
    places = _allowed_cutoffs(len(counts), config)
    seen = np.concatenate([[0], np.cumsum(counts)])
    largest = int(seen[-1]) * config.dim * (len(counts) + config.clusters + config.dim)
    if largest >= 2**62:
        seen = seen.astype(np.float64)
    best: Costs = seen[-1] * (config.dim * (places + config.clusters) + config.projection(0))
    choices = []
    for cluster in range(1, config.clusters):
        best, chosen = _add_cluster(
            best, _cluster_costs(places, places, seen, config, cluster), cluster
        )
        choices.append(chosen)
    last = config.clusters
    cluster_cost = _cluster_costs(places, np.array([len(counts)]), seen, config, last)
    at = np.arange(last - 1, len(places))
    path = [int(at[np.argmin(best[at] + cluster_cost(at, np.zeros_like(at)))])]
    for chosen in reversed(choices):
        path.append(int(chosen[path[-1]]))
    cutoffs = tuple(int(places[index]) for index in reversed(path))
    return Cuts(cutoffs, cutoff_cost(counts, cutoffs, config), float(config.dim * len(counts)))


def _check_counts(counts: Sequence[int] | Ints) -> Ints:
    found = np.asarray(counts, np.int64)
    if found.size == 0 or found.min() < 0 or found.sum() == 0:
        raise UserError("cut-offs need the words of a text and how often each occurs")
    return found


def _allowed_cutoffs(words: int, config: CutoffConfig) -> Ints:
    """Possible cut-offs: rows of the head, symbols included, are a multiple of `align`."""
    rows = np.arange(config.align, words + config.clusters, config.align)
    places = rows - config.clusters
    places = places[(places >= config.head) & (places < words)]
    if len(places) < config.clusters:
        raise UserError(
            f"{pluralize(words, 'word')} cannot be cut {pluralize(config.clusters, 'time')} with "
            f"at least {config.head} in the head and clusters in multiples of {config.align}; "
            "use fewer clusters, a smaller head or another alignment"
        )
    return places.astype(np.int64)


def _cluster_costs(
    begins: Ints, ends: Ints, seen: Costs, config: CutoffConfig, cluster: int
) -> Callable[[Ints, Ints], Costs]:
    """Return a function: cost of a cluster, given the indices of its begin and its end."""
    width, projection = config.width(cluster), config.projection(cluster)
    seen_begin, seen_end = seen[begins], seen[ends]

    def cost(begin: Ints, end: Ints) -> Costs:
        rows = ends[end] - begins[begin]
        found: Costs = (seen_end[end] - seen_begin[begin]) * (width * rows + projection)
        return found

    return cost


def _add_cluster(
    best: Costs, cluster_cost: Callable[[Ints, Ints], Costs], cluster: int
) -> tuple[Costs, Ints]:
    """Return the least cost up to each place with one more cluster, and where that cluster begins.

    Divide and conquer, all intervals of one level at a time: the best begin for the middle end
    bounds the best begins for the ends before and after it.
    """
    least, chosen = np.zeros_like(best), np.zeros(len(best), np.int64)
    bounds = np.array([[cluster, len(best) - 1, cluster - 1, len(best) - 2]])
    while len(bounds):
        first, final, low, high = bounds.T
        middle = (first + final) // 2
        sizes = np.minimum(high, middle - 1) - low + 1
        starts = np.cumsum(sizes) - sizes
        begin = np.arange(sizes.sum()) + np.repeat(low - starts, sizes)
        costs = best[begin] + cluster_cost(begin, np.repeat(middle, sizes))
        least[middle] = np.minimum.reduceat(costs, starts)
        hits = np.flatnonzero(costs == np.repeat(least[middle], sizes))
        at = begin[hits[np.searchsorted(hits, starts)]]
        chosen[middle] = at
        before = np.stack([first, middle - 1, low, at], axis=1)
        after = np.stack([middle + 1, final, at, high], axis=1)
        bounds = np.concatenate([before, after])
        bounds = bounds[bounds[:, 0] <= bounds[:, 1]]
    return least, chosen
