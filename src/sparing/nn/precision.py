"""Which precision matrix products run in."""

import torch
from torch import Tensor


def compute_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype matrix products of `tensor` will run in: autocast's, or its own."""
    kind = tensor.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else tensor.dtype


FIRST_GATE = 0.1
"""Of every channel of the values: little is let through before anything is learnt."""
