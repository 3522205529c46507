"""Dropout: zero numbers at random, scale up the rest."""

import torch.nn.functional as F
from torch import Tensor

from sparing.ops.dropout import words


def dropout(x: Tensor, rate: float) -> Tensor:
    """Zero each number with probability `rate`; a rate of 0 leaves `x` alone.

    On a CPU the mask comes from whole random words, elsewhere from torch.
    """
    if rate == 0:
        return x
    return x * words.kept(x, rate) if x.device.type == "cpu" else F.dropout(x, rate)
