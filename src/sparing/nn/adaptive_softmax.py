"""Adaptive input and softmax, which spend less on rare words (arXiv:1809.10853, 1609.04309).

Words are ordered by falling frequency and cut into clusters. The first cluster is the short list;
each later one is reached through one symbol next to the short list. Cluster i is `shrink`^i times
narrower. Axes: N tokens, D dim, V vocabulary, X any leading axes.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparing.units import IGNORE_INDEX

TiedProjections = Literal["all", "tails", "none"]


def clusters(vocab_size: int, cutoffs: Sequence[int]) -> list[tuple[int, int]]:
    """Return the ids [low, high) of each cluster; cut-offs must rise and leave none empty."""
    edges = [0, *cutoffs, vocab_size]
    if any(low >= high for low, high in pairwise(edges)):
        raise ValueError(
            f"cutoffs {tuple(cutoffs)} must rise and lie between 0 and vocab_size {vocab_size}"
        )
    return list(pairwise(edges))


def check_clusters(vocab_size: int, dim: int, cutoffs: Sequence[int], shrink: int) -> None:
    """Raise `ValueError` if a cluster would have no words or no width."""
    parts = clusters(vocab_size, cutoffs)
    if dim < shrink ** (len(parts) - 1):
        raise ValueError(f"shrink {shrink} leaves no width for the last of {len(parts)}")


def shortlist(vocab_size: int, cutoffs: Sequence[int]) -> int:
    """Return the size of the first softmax: the short list and one symbol per later cluster."""
    return cutoffs[0] + len(cutoffs) if cutoffs else vocab_size


class AdaptiveEmbedding(nn.Module):
    """A table per cluster and its projection to `dim`; without shrinking, one table for all."""

    def __init__(
        self, vocab_size: int, dim: int, *, cutoffs: Sequence[int] = (), shrink: int = 1
    ) -> None:
        super().__init__()
        self.dim, self.shrink = dim, shrink
        self.clusters = clusters(vocab_size, cutoffs)
        self.widths = [dim // shrink**index for index in range(len(self.clusters))]
        if shrink < 1 or self.widths[-1] < 1:
            raise ValueError(f"shrink {shrink} leaves no width of {dim} for the last cluster")
        if shrink == 1:
            self.tables = nn.ModuleList([nn.Embedding(vocab_size, dim)])
            self.projections = nn.ParameterList()
            return
        self.tables = nn.ModuleList(
            nn.Embedding(high - low, width)
            for (low, high), width in zip(self.clusters, self.widths, strict=True)
        )
        self.projections = nn.ParameterList(_projections(dim, self.widths))

    @property
    def weights(self) -> list[nn.Parameter]:
        """The tables' parameters."""
        return [table.weight for table in self.tables]  # type: ignore[misc]  # all embeddings

    def forward(self, tokens_X: Tensor) -> Tensor:
        """Return vectors of `dim` numbers."""
        if self.shrink == 1:
            return F.embedding(tokens_X, self.weights[0])
        flat_N = tokens_X.flatten()
        out_ND = self.weights[0].new_zeros(flat_N.numel(), self.dim)
        parts = zip(self.clusters, self.weights, self.projections, strict=True)
        for (low, high), weight, projection_DW in parts:
            chosen_M = _members(flat_N, low, high)
            rows_MD = F.linear(F.embedding(flat_N[chosen_M] - low, weight), projection_DW)
            out_ND = out_ND.index_copy(0, chosen_M, rows_MD.to(out_ND.dtype))
        return out_ND.view(*tokens_X.shape, self.dim)


class AdaptiveHead(nn.Module):
    """Softmax over the short list and the clusters' symbols, then one inside each cluster.

    It has the shape of an `AdaptiveEmbedding` and, if tied, its parameters. Cluster i (from 1) has
    the i-th symbol from the end, as in the published programs.
    """

    def __init__(
        self,
        embedding: AdaptiveEmbedding,
        *,
        tied: bool = True,
        tied_projections: TiedProjections = "tails",
    ) -> None:
        super().__init__()
        self.clusters, shapes = embedding.clusters, [weight.shape for weight in embedding.weights]
        self.weights = nn.ParameterList(
            embedding.weights if tied else [torch.empty(shape) for shape in shapes]
        )
        self.projections = nn.ParameterList(
            own if _has_own(tied_projections, index) else theirs
            for index, (own, theirs) in enumerate(
                zip(
                    _projections(embedding.dim, embedding.widths),
                    embedding.projections,
                    strict=False,
                )
            )
        )
        self.bias = nn.Parameter(torch.zeros(self.clusters[-1][1]))
        tails = len(self.clusters) - 1
        self.symbols = nn.Linear(embedding.widths[0], tails) if tails else None
        if not tied:
            for weight in self.weights:
                nn.init.normal_(weight, std=embedding.dim**-0.5)

    def nats(self, hidden_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        """See `Head`."""
        hidden_ND, targets_N = hidden_BTD.flatten(0, 1), targets_BT.flatten()
        head_NH, column_N = self._head(hidden_ND), targets_N
        for index, (low, high) in enumerate(self.clusters[1:], start=1):
            inside_N = (targets_N >= low) & (targets_N < high)
            column_N = torch.where(inside_N, head_NH.size(-1) - index, column_N)
        nats_N = F.cross_entropy(head_NH, column_N, ignore_index=IGNORE_INDEX, reduction="none")
        for index, (low, high) in enumerate(self.clusters[1:], start=1):
            chosen_M = _members(targets_N, low, high)
            tail_MC = self._tail(hidden_ND[chosen_M], index)
            tail_M = F.cross_entropy(tail_MC, targets_N[chosen_M] - low, reduction="none")
            nats_N = nats_N.index_add(0, chosen_M, tail_M)
        return nats_N.view_as(targets_BT)

    def logits(self, hidden_XD: Tensor) -> Tensor:
        """See `Head`; these are normalised log-probabilities."""
        head_XH = torch.log_softmax(self._head(hidden_XD), dim=-1)
        parts_XV = [head_XH[..., : self.clusters[0][1]]]
        for index in range(1, len(self.clusters)):
            inside_XC = torch.log_softmax(self._tail(hidden_XD, index), dim=-1)
            parts_XV.append(head_XH[..., -index, None] + inside_XC)
        return torch.cat(parts_XV, dim=-1)

    def _head(self, hidden_XD: Tensor) -> Tensor:
        weight, bias = self._weight(0), self.bias[: self.clusters[0][1]]
        if self.symbols is not None:
            weight = torch.cat([weight, self.symbols.weight])
            bias = torch.cat([bias, self.symbols.bias])
        return _at_least_float32(F.linear(self._project_down(hidden_XD, 0), weight, bias))

    def _tail(self, hidden_XD: Tensor, index: int) -> Tensor:
        low, high = self.clusters[index]
        down_XW = self._project_down(hidden_XD, index)
        return _at_least_float32(F.linear(down_XW, self._weight(index), self.bias[low:high]))

    def _weight(self, index: int) -> Tensor:
        low, high = self.clusters[index]
        whole: Tensor = self.weights[index if len(self.projections) else 0]
        return whole if len(self.projections) else whole[low:high]

    def _project_down(self, hidden_XD: Tensor, index: int) -> Tensor:
        if not len(self.projections):
            return hidden_XD
        return F.linear(hidden_XD, self.projections[index].mT)


def _has_own(tied: TiedProjections, index: int) -> bool:
    return tied == "none" or (tied == "tails" and index == 0)


def _projections(dim: int, widths: Sequence[int]) -> list[Tensor]:
    drawn = [torch.empty(dim, width) for width in widths]
    return [nn.init.normal_(projection, std=dim**-0.5) for projection in drawn]


def _members(ids_N: Tensor, low: int, high: int) -> Tensor:
    return ((ids_N >= low) & (ids_N < high)).nonzero().squeeze(1)


def _at_least_float32(logits_X: Tensor) -> Tensor:
    """Sums over many words need at least float32."""
    return logits_X.float() if logits_X.element_size() < 4 else logits_X
