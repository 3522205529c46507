"""Multi-head attention whose heads project and see no more of the past than their spans reach.

Axes: B batch, H heads, T segment, M memory, S = M + T keys, D dim, K head width, L limit.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparing.nn.span import grouped
from sparing.ops.span_attention import Persistent, Ramp, span_attention

Source = Tensor | tuple[Tensor, Tensor]
"""What is attended to, memory first: layer inputs (B, S, D) to project, or keys and values."""


class PersistentMemory(nn.Module):
    """Keys and values of a head's own that stand for the feed-forward layer (arXiv:1907.01470).

    They are stored small and used large, so that a clipped step moves them further.
    """

    def __init__(self, heads: int, head_dim: int, size: int) -> None:
        super().__init__()
        self.keys = nn.Parameter(torch.randn(heads, head_dim, size) / math.sqrt(head_dim))
        self.values = nn.Parameter(torch.randn(heads, size, head_dim) / math.sqrt(size))

    def forward(self, heads: Sequence[int] | None = None) -> Persistent:
        """The vectors of some heads, or of all."""
        chosen = slice(None) if heads is None else list(heads)
        keys_HKN, values_HNK = self.keys[chosen], self.values[chosen]
        scales = math.sqrt(keys_HKN.size(1)), math.sqrt(values_HNK.size(1))
        return Persistent(keys_HKN * scales[0], values_HNK * scales[1])


class SpanAttention(nn.Module):
    """Query, key, value and output matrices without biases, and spans given from outside."""

    def __init__(  # noqa: PLR0913  all but two are keyword-only
        self,
        dim: int,
        heads: int,
        *,
        ramp: Ramp,
        dropout: float = 0.0,
        persistent: int = 0,
        zeros: bool = True,
    ) -> None:
        super().__init__()
        if dim % heads:
            raise ValueError(f"dim {dim} must be a multiple of heads {heads}")
        self.heads, self.head_dim = heads, dim // heads
        self.ramp, self.dropout, self.zeros = ramp, dropout, zeros
        self.query, self.key, self.value, self.out = (
            nn.Linear(dim, dim, bias=False) for _ in range(4)
        )
        self.persistent = PersistentMemory(heads, dim // heads, persistent) if persistent else None

    def forward(  # noqa: PLR0913  the last is seldom given
        self,
        hidden_BTD: Tensor,
        source: Source,
        position_KL: Tensor,
        span: Tensor,
        reaches: Sequence[int],
        seen_B: Tensor | None = None,
    ) -> Tensor:
        """Attend from `hidden`, whose own positions are the last T of `source`.

        `reaches` says how far each head looks, before any product is made.
        """
        query_BHTK = self._split(self.query(hidden_BTD))
        groups = grouped(reaches, position_KL.size(1))
        mixed = []
        for width, heads in groups:
            chosen = None if len(groups) == 1 else heads
            keys_BHSK, values_BHSK = self.project(source, hidden_BTD.size(1) + width, chosen)
            mixed_BHTK = span_attention(
                query_BHTK if chosen is None else query_BHTK[:, chosen],
                keys_BHSK,
                values_BHSK,
                position_KL[:, -width:],
                _of_heads(span, chosen),
                ramp=self.ramp,
                zeros=self.zeros,
                seen_B=seen_B,
                persistent=None if self.persistent is None else self.persistent(chosen),
                dropout=self.dropout if self.training else 0.0,
            )
            mixed.append(mixed_BHTK)
        merged_BTD = _in_order(mixed, groups).transpose(1, 2).flatten(2)
        out_BTD: Tensor = self.out(merged_BTD)
        return out_BTD

    def project(
        self, source: Source, length: int, heads: Sequence[int] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Keys and values (B, H, S, K) of the last `length` positions, for some heads or all."""
        if not isinstance(source, Tensor):
            keys_BHSK, values_BHSK = (self._split(part[:, -length:]) for part in source)
            if heads is None:
                return keys_BHSK, values_BHSK
            return keys_BHSK[:, heads], values_BHSK[:, heads]
        recent_BSD = source[:, -length:]
        keys_BHSK, values_BHSK = (
            self._split(F.linear(recent_BSD, self._rows(layer.weight, heads)))
            for layer in (self.key, self.value)
        )
        return keys_BHSK, values_BHSK

    def _rows(self, weight_DD: Tensor, heads: Sequence[int] | None) -> Tensor:
        if heads is None:
            return weight_DD
        return weight_DD.view(self.heads, self.head_dim, -1)[heads].flatten(0, 1)

    def _split(self, x_BSD: Tensor) -> Tensor:
        return x_BSD.view(*x_BSD.shape[:2], -1, self.head_dim).transpose(1, 2)


def _of_heads(span: Tensor, heads: Sequence[int] | None) -> Tensor:
    if heads is None:
        return span
    return span[heads] if span.ndim == 1 else span[:, heads]


def _in_order(mixed: list[Tensor], groups: list[tuple[int, list[int]]]) -> Tensor:
    """Heads side by side again, in their own order."""
    if len(mixed) == 1:
        return mixed[0]
    order = [head for _, heads in groups for head in heads]
    back = sorted(range(len(order)), key=order.__getitem__)
    return torch.cat(mixed, dim=1)[:, back]
