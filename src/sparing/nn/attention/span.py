"""Learned attention spans (arXiv:1905.07799). Axes: B batch, H heads, T queries, S keys.

Spans are counted in positions before the ramp; the learned parameter is a ratio of the limit.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from sparing.ops.span_attention import Ramp, log_mask

SpanKind = Literal["head", "layer", "fixed"]
GRAIN = 64
"""The original cuts windows to multiples of this, and caches that many positions in reserve."""


class SpanOutput(NamedTuple):
    """Attention weights, and the mean span, which is penalised."""

    weights_BHTS: Tensor
    penalty: Tensor
    """Mean span of the heads in positions: add it to the loss times a small number."""


class AdaptiveSpan(nn.Module):
    """Learned spans that turn attention scores into weights; can be used in any attention layer.

    The module keeps its ratios in range: nothing has to be called after a step.
    """

    ratio: Tensor

    def __init__(
        self,
        heads: int,
        limit: int,
        *,
        ramp: Ramp | None = None,
        start: float = 0.0,
        kind: SpanKind = "head",
    ) -> None:
        """`start` is the initial ratio; `fixed` spans keep it; `layer` has one for all heads."""
        super().__init__()
        if heads < 1 or limit < 1 or not 0 <= start <= 1:
            raise ValueError("heads and limit must be positive, start between 0 and 1")
        if kind not in get_args(SpanKind):
            raise ValueError(f"a span is one of {', '.join(get_args(SpanKind))}, not {kind!r}")
        self.heads, self.limit, self.ramp, self.kind = heads, limit, ramp or Ramp(), kind
        ratio = torch.full((1 if kind == "layer" else heads,), float(start))
        if kind == "fixed":
            self.register_buffer("ratio", ratio, persistent=False)
        else:
            self.ratio = nn.Parameter(ratio)

    def lengths(self) -> Tensor:
        """Return the span of every head in positions (H,), with gradient."""
        if self.training:
            # Like the original's clamp after each step, but before the next use.
            # Through `data`, so that a graph which saved the parameter stays valid.
            self.ratio.data.clamp_(0, 1)
        inside = self.ratio + (self.ratio.clamp(0, 1) - self.ratio).detach()
        return (self.limit * inside).expand(self.heads)

    def penalty(self) -> Tensor:
        """Return the mean span of the heads in positions; 0 where spans are not learned."""
        lengths_H = self.lengths()
        return lengths_H.mean() if self.kind != "fixed" else lengths_H.new_zeros(())

    def reach(self) -> int:
        """Return the farthest distance any head uses: keys beyond it need not be computed."""
        return min(self.limit, self.ramp.reach(float(self.lengths().detach().max())))

    def forward(self, scores_BHTS: Tensor, *, causal: bool = True) -> SpanOutput:
        """Return the weights of keys, the last T of which are the queries' own positions.

        Causal heads see their own position and those before it; others equally far to both sides.
        """
        segment, keys = scores_BHTS.shape[-2:]
        if keys < segment:
            raise ValueError(f"{segment} queries need at least as many keys, not {keys}")
        own_T1 = torch.arange(keys - segment, keys, device=scores_BHTS.device)[:, None]
        distance_TS = (own_T1 - torch.arange(keys, device=scores_BHTS.device)).float()
        if causal:
            distance_TS = distance_TS.masked_fill(distance_TS < 0, torch.inf)
        bias_HTS = log_mask(self.lengths()[:, None, None], distance_TS.abs(), self.ramp)
        return SpanOutput(torch.softmax(scores_BHTS + bias_HTS, dim=-1), self.penalty())


class DynamicSpan(nn.Module):
    """Spans that depend on the query: z_t = limit * sigmoid(v . x_t + b), one v and b per head."""

    def __init__(self, dim: int, heads: int, limit: int, *, bias: float = -4.0) -> None:
        super().__init__()
        self.limit = limit
        self.gauge = nn.Linear(dim, heads)
        nn.init.constant_(self.gauge.bias, bias)

    def lengths(self, hidden_BTD: Tensor) -> Tensor:
        """Return the span of every head at every query (B, H, T), in positions."""
        return self.limit * torch.sigmoid(self.gauge(hidden_BTD).float()).mT


def layer_window(longest: float, limit: int, ramp: int) -> int:
    """Return the original's window for a layer whose longest span is `longest`."""
    used = min(limit, math.ceil(longest) + ramp)
    return limit - min(limit - 1, limit - used) // GRAIN * GRAIN


def cache_length(longest: float, limit: int, ramp: int) -> int:
    """Return the positions the original keeps for that layer: its window and some reserve."""
    return min(limit, layer_window(longest, limit, ramp) + GRAIN)


def group_heads_by_window(reaches: Sequence[int], limit: int) -> list[tuple[int, list[int]]]:
    """Return windows and the heads that share them; reaches are rounded up by up to a quarter."""
    groups: dict[int, list[int]] = {}
    for head, reach in enumerate(reaches):
        groups.setdefault(min(limit, _round_up(reach)), []).append(head)
    return sorted(groups.items())


def _round_up(reach: int) -> int:
    step = max(16, 1 << max(0, reach.bit_length() - 3))
    return math.ceil(reach / step) * step
