"""Where to cut a vocabulary for an adaptive softmax, so that it multiplies least.

The first words and one symbol per rarer cluster are the head, scored for every token; a cluster is
scored for its own tokens only (arXiv:1609.04309). Costs are multiply-adds per token in training.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sparing.errors import UserError
from sparing.units import counted

Ints = npt.NDArray[np.int64]
Price = npt.NDArray[Any]
"""Whole numbers while they fit, so that equal costs are equal."""
CHUNK = 1 << 22
NARROW_HEAD = 2000
"""Least words of a head beside narrower clusters: cost alone would leave it a few dozen."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CutoffConfig:
    """The softmax that is to be cut."""

    clusters: int = 3
    """Rarer clusters beside the head: as many cut-offs."""
    dim: int = 512
    """Width of the hidden vectors."""
    shrink: int = 1
    """How many times narrower each cluster is than the one before; above 1 it is projected to."""
    least_head: int | None = None
    """Least words in the head. None: 1, or 2000 beside narrower clusters."""
    align: int = 64
    """Rows of the head (symbols included) and of all clusters but the last: a multiple of this."""

    def __post_init__(self) -> None:
        for name in ("clusters", "dim", "shrink", "align"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.least_head is not None and self.least_head < 1:
            raise UserError(f"the head must have at least 1 word, not {self.least_head}")
        if self.dim < self.shrink**self.clusters:
            raise UserError(
                f"shrink {self.shrink} leaves no width of {self.dim} for cluster {self.clusters}"
            )

    @property
    def head(self) -> int:
        """Least words in the head, settled."""
        if self.least_head is not None:
            return self.least_head
        return 1 if self.shrink == 1 else NARROW_HEAD

    def width(self, cluster: int) -> int:
        """Numbers per word of a cluster; the head is cluster 0."""
        return self.dim // int(self.shrink**cluster)

    def projection(self, cluster: int) -> int:
        """Multiply-adds to bring a hidden vector to a cluster's width."""
        return 0 if self.shrink == 1 else self.dim * self.width(cluster)


class Cuts(NamedTuple):
    """Cut-offs and what they cost."""

    cutoffs: tuple[int, ...]
    cost: float
    """Multiply-adds per token."""
    plain: float
    """The same of one plain softmax."""


def frequencies(ids: npt.NDArray[Any], words: int) -> Ints:
    """How often each of `words` ids occurs."""
    counts = np.zeros(words, np.int64)
    for begin in range(0, len(ids), CHUNK):
        counts += np.bincount(ids[begin : begin + CHUNK], minlength=words)
    return counts


def cost(counts: Sequence[int] | Ints, cutoffs: Sequence[int], config: CutoffConfig) -> float:
    """Multiply-adds per token of an adaptive softmax over words that occur this often."""
    often = _checked(counts)
    edges = [0, *cutoffs, len(often)]
    total = config.dim * (edges[1] + len(cutoffs)) + config.projection(0)
    share = [often[low:high].sum() / often.sum() for low, high in pairwise(edges)]
    for cluster, (low, high) in enumerate(pairwise(edges[1:]), start=1):
        inside = config.width(cluster) * (high - low) + config.projection(cluster)
        total += share[cluster] * inside
    return float(total)


def optimal(counts: Sequence[int] | Ints, config: CutoffConfig) -> Cuts:
    """The cheapest cut-offs; of equally cheap ones those with the earliest last cut.

    Words keep their order, which should be by falling frequency. Each cluster is added to all
    beginnings at once: since its price is Monge, the best beginning moves only one way, and
    K clusters over N words take O(K N log N) (docs/data.md).
    """
    often = _checked(counts)
    places = _places(len(often), config)
    seen = np.concatenate([[0], np.cumsum(often)])
    largest = int(seen[-1]) * config.dim * (len(often) + config.clusters + config.dim)
    if largest >= 2**62:
        seen = seen.astype(np.float64)
    best: Price = seen[-1] * (config.dim * (places + config.clusters) + config.projection(0))
    choices = []
    for cluster in range(1, config.clusters):
        best, chosen = _extended(best, _pricing(places, places, seen, config, cluster), cluster)
        choices.append(chosen)
    last = config.clusters
    price = _pricing(places, np.array([len(often)]), seen, config, last)
    at = np.arange(last - 1, len(places))
    path = [int(at[np.argmin(best[at] + price(at, np.zeros_like(at)))])]
    for chosen in reversed(choices):
        path.append(int(chosen[path[-1]]))
    cutoffs = tuple(int(places[index]) for index in reversed(path))
    return Cuts(cutoffs, cost(often, cutoffs, config), float(config.dim * len(often)))


def _checked(counts: Sequence[int] | Ints) -> Ints:
    often = np.asarray(counts, np.int64)
    if often.size == 0 or often.min() < 0 or often.sum() == 0:
        raise UserError("cut-offs need words and how often each occurs")
    return often


def _places(words: int, config: CutoffConfig) -> Ints:
    """Where a cut may be: rows of the head, symbols included, are a multiple of `align`."""
    rows = np.arange(config.align, words + config.clusters, config.align)
    places = rows - config.clusters
    places = places[(places >= config.head) & (places < words)]
    if len(places) < config.clusters:
        raise UserError(
            f"{counted(words, 'word')} cannot be cut {counted(config.clusters, 'time')} with at "
            f"least {config.head} in the head and clusters in multiples of {config.align}; "
            "ask for fewer clusters, a smaller head or another alignment"
        )
    return places.astype(np.int64)


def _pricing(
    begins: Ints, ends: Ints, seen: Price, config: CutoffConfig, cluster: int
) -> Callable[[Ints, Ints], Price]:
    """Price of a cluster between a begin and an end, given by their indices."""
    width, projection = config.width(cluster), config.projection(cluster)
    seen_begin, seen_end = seen[begins], seen[ends]

    def price(begin: Ints, end: Ints) -> Price:
        rows = ends[end] - begins[begin]
        found: Price = (seen_end[end] - seen_begin[begin]) * (width * rows + projection)
        return found

    return price


def _extended(
    best: Price, price: Callable[[Ints, Ints], Price], cluster: int
) -> tuple[Price, Ints]:
    """Least cost up to each place with one cluster more, and the place where that one begins.

    Divide and conquer, one level of all halves at a time: the best begin of the middle end bounds
    those of the ends before and after it.
    """
    least, chosen = np.zeros_like(best), np.zeros(len(best), np.int64)
    bounds = np.array([[cluster, len(best) - 1, cluster - 1, len(best) - 2]])
    while len(bounds):
        first, final, low, high = bounds.T
        middle = (first + final) // 2
        sizes = np.minimum(high, middle - 1) - low + 1
        starts = np.cumsum(sizes) - sizes
        begin = np.arange(sizes.sum()) + np.repeat(low - starts, sizes)
        costs = best[begin] + price(begin, np.repeat(middle, sizes))
        least[middle] = np.minimum.reduceat(costs, starts)
        hits = np.flatnonzero(costs == np.repeat(least[middle], sizes))
        at = begin[hits[np.searchsorted(hits, starts)]]
        chosen[middle] = at
        before = np.stack([first, middle - 1, low, at], axis=1)
        after = np.stack([middle + 1, final, at, high], axis=1)
        bounds = np.concatenate([before, after])
        bounds = bounds[bounds[:, 0] <= bounds[:, 1]]
    return least, chosen
