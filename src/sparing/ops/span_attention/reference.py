"""The definition, in plain torch: every key of every query is gathered, nothing is shared.

Scores are ordered by distance: column j of W is the key W - j positions back, the last is 1 back.
The soft edge of a span z at distance x is the mask clamp((R + o + z - x) / R, 0, 1), with ramp R
and offset o, which is 0 in the paper (arXiv:1905.07799) and 1 in its code.
Axes: B batch, H heads, T segment, W distances, K head width, N persistent vectors.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

FLOOR = 1e-30
"""Replaces a mask of exactly 0 at the far end of a ramp, so that its logarithm has a slope."""


@dataclass(frozen=True, slots=True)
class Ramp:
    """The shape of a span's far edge."""

    length: int = 32
    """Positions over which the mask falls from 1 to 0."""
    offset: int = 1
    """Positions the ramp is shifted outwards: 1 in the original's code, 0 in its paper."""
    closed: bool = False
    """Whether both ends of the ramp pass gradient, like the original's clamp at integer spans.

    By default only the far end does, so the gradient is the derivative towards longer spans.
    """

    def reach(self, span: float) -> int:
        """Return the farthest distance that a head of this span uses, or would if it grew a bit."""
        return int(self.length + self.offset + span)


class PersistentVectors(NamedTuple):
    """Keys and values that every query of a head sees."""

    keys_HKN: Tensor
    values_HNK: Tensor


def span_attention(  # noqa: PLR0913  a public op
    query_BHTK: Tensor,
    keys_BHSK: Tensor,
    values_BHSK: Tensor,
    position_KW: Tensor,
    span: Tensor,
    *,
    ramp: Ramp,
    zeros: bool = True,
    seen_B: Tensor | None = None,
    persistent: PersistentVectors | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """See the package's docstring."""
    segment, memory = query_BHTK.size(2), keys_BHSK.size(2) - query_BHTK.size(2)
    width = position_KW.size(1)
    slot_TW = slots(segment, memory, width, device=query_BHTK.device)
    there_TW1 = (slot_TW >= 0).to(keys_BHSK)[..., None]
    keys_BHTWK = keys_BHSK[:, :, slot_TW.clamp(min=0)] * there_TW1
    values_BHTWK = values_BHSK[:, :, slot_TW.clamp(min=0)] * there_TW1
    query_BHT1K = query_BHTK[..., None, :] * query_BHTK.size(-1) ** -0.5
    scores = (query_BHT1K * (keys_BHTWK + position_KW.mT)).sum(-1)
    mask = soft_mask(rows(span), distances(width, like=scores), ramp).expand_as(scores)
    if not zeros:
        gone = before_start(slot_TW, first_key(memory, seen_B), alone=persistent is None)
        scores, mask = scores.masked_fill(gone, -torch.inf), mask.masked_fill(gone, 0)
    if persistent is not None:
        scores = torch.cat([scores, query_BHT1K[..., 0, :] @ persistent.keys_HKN], dim=-1)
        mask = F.pad(mask, (0, persistent.keys_HKN.size(-1)), value=1.0)
    top = scores.detach().masked_fill(mask <= 0, -torch.inf).amax(-1, keepdim=True)
    share = (scores - top).exp() * mask
    weights = F.dropout(share / share.sum(-1, keepdim=True), dropout, training=dropout > 0)
    mixed_BHTK = (weights[..., :width, None] * values_BHTWK).sum(-2)
    if persistent is not None:
        mixed_BHTK = mixed_BHTK + weights[..., width:] @ persistent.values_HNK
    return mixed_BHTK


def soft_mask(span: Tensor, distance: Tensor, ramp: Ramp) -> Tensor:
    """Return the mask, with the ramp's gradient towards `span`; the arguments broadcast."""
    raw = _unclamped_mask(span, distance, ramp)
    slope = _passes_gradient(raw, ramp) / ramp.length
    return raw.clamp(0, 1) + slope * (span - span.detach())


def log_mask(span: Tensor, distance: Tensor, ramp: Ramp) -> Tensor:
    """Return the logarithm of `soft_mask`: -inf out of reach, a finite gradient elsewhere.

    d log(m) / dz = 1 / (R m) is infinite where m = 0, while the softmax's gradient is 0 there.
    With m raised to `FLOOR` at the end of the ramp both are finite and their product is exact; the
    weight of that position is far below rounding.
    """
    raw = _unclamped_mask(span, distance, ramp)
    mask = raw.clamp(FLOOR, 1.0)
    logarithm = mask.log().masked_fill(raw < 0, -torch.inf)
    if not span.requires_grad:
        return logarithm
    slope = _passes_gradient(raw, ramp) / (ramp.length * mask)
    return logarithm + slope * (span - span.detach())


def _unclamped_mask(span: Tensor, distance: Tensor, ramp: Ramp) -> Tensor:
    return (ramp.length + ramp.offset + span.detach() - distance) / ramp.length


def _passes_gradient(raw: Tensor, ramp: Ramp) -> Tensor:
    return (raw >= 0) & ((raw <= 1) if ramp.closed else (raw < 1))


def distances(width: int, *, like: Tensor) -> Tensor:
    """Return the distance of each column."""
    return torch.arange(width, 0, -1, device=like.device, dtype=torch.float32)


def rows(span: Tensor) -> Tensor:
    """Reshape spans of heads (H,), queries (B, H, T) or keys (B, 1, T, W) to fit (B, H, T, W)."""
    if span.ndim == 1:
        return span[:, None, None]
    return span[..., None] if span.ndim == 3 else span


def slots(segment: int, memory: int, width: int, *, device: torch.device) -> Tensor:
    """Return the key (T, W) of each query in each column; negative before the first key."""
    query_T1 = torch.arange(segment, device=device)[:, None]
    return query_T1 + torch.arange(width, device=device) + (memory - width)


def first_key(memory: int, seen_B: Tensor | None) -> Tensor | int:
    """Return the first valid key of the stream, or of each lane (B, 1, 1, 1)."""
    return 0 if seen_B is None else (memory - seen_B).clamp(min=0)[:, None, None, None]


def before_start(slot_TW: Tensor, first: Tensor | int, *, alone: bool) -> Tensor:
    """Return where a key would be before the first valid one.

    If keys are `alone` (no persistent vectors), the first query keeps one slot, a zero vector.
    """
    gone = slot_TW < first
    if alone:
        gone[..., -1] = False
    return gone
