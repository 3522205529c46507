"""How far back each head sees, and from where on there is anything to see."""

from typing import NamedTuple

import torch
from torch import Tensor


class Edge(NamedTuple):
    """m(x) = clamp((ramp + z - x) / ramp, 0, 1) at distance x, for a head of span z."""

    span_H: Tensor
    """z of each head; gets a gradient from its ramp."""
    first_B: Tensor
    """The first stored entry of each lane that exists."""
    ramp: int
    """Positions over which a window fades out."""


def mask(edge: Edge, segment: int, keys: int) -> Tensor:
    """m for every query and key (B, H, T, S); zero for what is ahead or does not exist."""
    key_S = torch.arange(keys, device=edge.span_H.device)
    distance_TS = key_S[keys - segment :, None] - key_S
    raw_HTS = (edge.ramp + edge.span_H[:, None, None] - distance_TS) / edge.ramp
    there_B11S = (key_S >= edge.first_B[:, None])[:, None, None]
    return raw_HTS.clamp(0, 1) * ((distance_TS >= 0) & there_B11S)
