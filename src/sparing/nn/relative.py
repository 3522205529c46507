"""Relative multi-head attention (arXiv:1901.02860, section 3.3) and its sinusoids.

Axes: B batch, T segment, S keys, D dim, H heads, K head dim, E = H x K.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sparing.nn.attention import compute_dtype
from sparing.ops.relative_attention import Bias, relative_attention


class RelativeAttention(nn.Module):
    """Keys are matched by content and by distance; no projection has a bias."""

    def __init__(self, dim: int, heads: int, head_dim: int, *, dropout: float) -> None:
        super().__init__()
        self.head_dim, width = head_dim, heads * head_dim
        self.query = nn.Linear(dim, width, bias=False)
        self.key = nn.Linear(dim, width, bias=False)
        self.value = nn.Linear(dim, width, bias=False)
        self.position = nn.Linear(dim, width, bias=False)
        self.output = nn.Linear(width, dim, bias=False)
        self.dropout_rate = dropout

    def entries(self, source_BSD: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (B, S, E) of stored vectors."""
        return self.key(source_BSD), self.value(source_BSD)

    def forward(  # noqa: PLR0913  the last two are seldom given
        self,
        source_BTD: Tensor,
        entries: tuple[Tensor, Tensor],
        positions_SE: Tensor,
        bias: Bias,
        reach: int | None = None,
        seen_B: Tensor | None = None,
    ) -> Tensor:
        """Attend from `source`; the last T entries are its own positions."""
        keys_BSE, values_BSE = entries
        mixed_BTHK = relative_attention(
            self._by_head(self.query(source_BTD)),
            self._by_head(keys_BSE),
            self._by_head(values_BSE),
            self._by_head(positions_SE),
            bias,
            reach=reach,
            seen_B=seen_B,
            dropout=self.dropout_rate if self.training else 0.0,
        )
        out_BTD: Tensor = self.output(mixed_BTHK.flatten(-2))
        return out_BTD

    def _by_head(self, tensor_XE: Tensor) -> Tensor:
        return tensor_XE.view(*tensor_XE.shape[:-1], -1, self.head_dim)


class RelativeBias(nn.Module):
    """The two learned queries of `relative_attention`."""

    def __init__(self, heads: int, head_dim: int) -> None:
        super().__init__()
        self.content = nn.Parameter(torch.zeros(heads, head_dim))
        self.position = nn.Parameter(torch.zeros(heads, head_dim))

    def forward(self) -> Bias:
        """Both, by name."""
        return Bias(self.content, self.position)


def sinusoids(distance_S: Tensor, dim: int) -> Tensor:
    """[sin(d w), cos(d w)] with w_m = 10000^(-2m/dim): halves side by side, not interleaved."""
    exponent = torch.arange(0, dim, 2, device=distance_S.device, dtype=distance_S.dtype) / dim
    angle_SD = distance_S[:, None] / 10000**exponent
    return torch.cat([angle_SD.sin(), angle_SD.cos()], dim=-1)


Project = Callable[[int], list[Tensor]]
"""Number of rows -> that many rows of every layer, the last of them distance 0."""


class PositionTable:
    """Projected sinusoids, kept while the weights stand still.

    Writing token by token would otherwise project thousands of rows in every layer for each token.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._rows: list[Tensor] = []
        self._stamp: list[tuple[Tensor, Any]] = []

    def rows(
        self,
        keys: int,
        most: int,
        weights: Sequence[Tensor],
        project: Project,
    ) -> list[Tensor]:
        """The newest `keys` rows of every layer; at most `most` will ever be asked for."""
        stamp = [(weight, _version(weight)) for weight in weights]
        if not self._fits(stamp) or self._rows[0].size(0) < keys:
            # Memory that still grows asks for one more row each time.
            self._rows = project(max(keys, min(most, 1 << (keys - 1).bit_length())))
            self._stamp = stamp
        return [rows_XE[rows_XE.size(0) - keys :] for rows_XE in self._rows]

    def _fits(self, stamp: Sequence[tuple[Tensor, Any]]) -> bool:
        return len(stamp) == len(self._stamp) and all(
            one is other and version == seen
            for (one, version), (other, seen) in zip(stamp, self._stamp, strict=True)
        )


def _version(weight: Tensor) -> Any:
    """Changes whenever torch writes to the tensor, moves it or would compute in another dtype."""
    return weight._version, weight.data_ptr(), weight.device, compute_dtype(weight)
