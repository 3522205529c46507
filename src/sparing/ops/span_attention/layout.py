"""Scores by distance: column j of W stands for the key W - j positions back, the last for 1.

Axes: B batch, H heads, T segment, W distances, K head width, N persistent vectors.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Persistent(NamedTuple):
    """Keys and values every query of a head sees, wherever it stands."""

    keys_HKN: Tensor
    values_HNK: Tensor


def distances(width: int, *, like: Tensor) -> Tensor:
    """The distance of each column."""
    return torch.arange(width, 0, -1, device=like.device, dtype=torch.float32)


def rows(span: Tensor) -> Tensor:
    """Spans of heads (H,), of queries (B, H, T) or of keys (B, 1, T, W), to fit (B, H, T, W)."""
    if span.ndim == 1:
        return span[:, None, None]
    return span[..., None] if span.ndim == 3 else span


def slots(segment: int, memory: int, width: int, *, device: torch.device) -> Tensor:
    """The key (T, W) that each query has in each column; negative before the first."""
    query_T1 = torch.arange(segment, device=device)[:, None]
    return query_T1 + torch.arange(width, device=device) + (memory - width)


def begins(memory: int, seen_B: Tensor | None) -> Tensor | int:
    """The first key of the stream, or of each lane's (B, 1, 1, 1)."""
    return 0 if seen_B is None else (memory - seen_B).clamp(min=0)[:, None, None, None]


def before_start(slot_TW: Tensor, first: Tensor | int, *, alone: bool) -> Tensor:
    """Where the key would stand before the first of the stream.

    A first query with nothing else to see keeps one empty slot: its weight falls on a zero vector.
    """
    gone = slot_TW < first
    if alone:
        gone[..., -1] = False
    return gone
