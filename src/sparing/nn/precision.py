"""The precision that matrix products run in."""

import torch
from torch import Tensor


def compute_dtype(tensor: Tensor) -> torch.dtype:
    """Return the dtype that matrix products of `tensor` run in: autocast's, or its own."""
    kind = tensor.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else tensor.dtype
