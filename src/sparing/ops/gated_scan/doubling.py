"""The same in log2(T) passes: runs of 1, 2, 4, ... steps are composed pairwise (Hillis and Steele).

Composing (a, b) means c -> a c + b. Every a is a product of gates in [0, 1], so nothing overflows
and no logarithm is needed.
"""

import torch
from torch import Tensor


def gated_scan(forget_BTD: Tensor, candidate_BTD: Tensor, initial_BD: Tensor) -> Tensor:
    """See the package's docstring."""
    factor_BTD, offset_BTD = forget_BTD, (1 - forget_BTD) * candidate_BTD
    reach, segment = 1, forget_BTD.size(1)
    while reach < segment:
        later = factor_BTD[:, reach:]
        offset_BTD = torch.cat(
            [offset_BTD[:, :reach], offset_BTD[:, reach:] + later * offset_BTD[:, :-reach]], dim=1
        )
        factor_BTD = torch.cat([factor_BTD[:, :reach], later * factor_BTD[:, :-reach]], dim=1)
        reach *= 2
    return factor_BTD * initial_BD[:, None] + offset_BTD
