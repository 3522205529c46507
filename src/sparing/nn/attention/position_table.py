"""Codes of distances for relative attention, and caches of their projections.

Axes: S distances, D dim, E = heads x head width.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sparing.nn.precision import compute_dtype


def sinusoids(distance_S: Tensor, dim: int) -> Tensor:
    """Return [sin(d w), cos(d w)], w_m = 10000^(-2m/dim), as two halves, not interleaved."""
    exponent = torch.arange(0, dim, 2, device=distance_S.device, dtype=distance_S.dtype) / dim
    angle_SD = distance_S[:, None] / 10000**exponent
    return torch.cat([angle_SD.sin(), angle_SD.cos()], dim=-1)


BLOCK = 64
"""Rows projected at a time: of more, a product might be rounded differently."""
Project = Callable[[int], list[Tensor]]
"""Number of rows -> that many rows for every layer, the last of them for distance 0."""


class PositionTable:
    """A cache of projected sinusoids that is valid as long as the weights do not change.

    Without it, every generated token would project thousands of rows in every layer.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Drop the cached rows."""
        self._rows: list[Tensor] = []
        self._stamp: list[tuple[Tensor, Any]] = []

    def rows(
        self, keys: int, limit: int, weights: Sequence[Tensor], project: Project
    ) -> list[Tensor]:
        """Return the newest `keys` rows of every layer; `limit` is the most that are ever needed.

        Cached rows have no gradient. Where the weights need one, the rows are projected again, and
        the cache is dropped: fused optimizers change weights without a trace.
        """
        if torch.is_grad_enabled() and any(weight.requires_grad for weight in weights):
            self.clear()
            return project(keys)
        stamp = [(weight, _version(weight)) for weight in weights]
        if not self._fits(stamp) or self._rows[0].size(0) < keys:
            # More than needed, because a growing memory needs one more row each time.
            self._rows = project(max(keys, min(limit, 1 << (keys - 1).bit_length())))
            self._stamp = stamp
        return [rows_XE[rows_XE.size(0) - keys :] for rows_XE in self._rows]

    def _fits(self, stamp: Sequence[tuple[Tensor, Any]]) -> bool:
        return len(stamp) == len(self._stamp) and all(
            one is other and version == seen
            for (one, version), (other, seen) in zip(stamp, self._stamp, strict=True)
        )


class RingCodes:
    """Projected codes of the distances 0, 1, ... for rings, as long as the longest needs them.

    Rings of any length share them, and weights that have changed project them anew.
    """

    def __init__(self) -> None:
        self._codes_SD = self._rows_SE = torch.empty(0, 0)
        self._stamp: tuple[Tensor, Any] | None = None

    def extend(self, codes_SD: Tensor) -> None:
        """Take codes of whole blocks, unless more of them are there; forget the projected ones."""
        kept = self._codes_SD
        alike = (kept.dtype, kept.device) == (codes_SD.dtype, codes_SD.device)
        if not alike or kept.size(0) < codes_SD.size(0):
            self._codes_SD = codes_SD
        self._stamp = None

    @torch.no_grad()
    def rows(self, count: int, position: nn.Linear) -> Tensor:
        """Return the projected codes (R, E) of the first `count` distances."""
        weight, version = position.weight, _version(position.weight)
        if self._stamp is None or self._stamp[0] is not weight or self._stamp[1] != version:
            self._rows_SE = torch.cat(
                [position(each) for each in torch.split(self._codes_SD, BLOCK)]
            )
            self._stamp = weight, version
        return self._rows_SE[:count]


def whole_blocks(rows: int) -> int:
    """Return a number of rows, rounded up to whole blocks."""
    return -(-rows // BLOCK) * BLOCK


def _version(weight: Tensor) -> Any:
    """Return a value that changes when torch writes to the tensor, moves it or recasts it."""
    # Torch does not count writes to a tensor made in inference mode: any may have been written to.
    writes = object() if weight.is_inference() else weight._version
    return writes, weight.data_ptr(), weight.device, compute_dtype(weight)
