"""The definition: one step after the other."""

import torch
from torch import Tensor


def gated_scan(forget_BTD: Tensor, candidate_BTD: Tensor, initial_BD: Tensor) -> Tensor:
    """See the package's docstring."""
    cell_BD, cells = initial_BD, []
    for forget_BD, candidate_BD in zip(forget_BTD.unbind(1), candidate_BTD.unbind(1), strict=True):
        cell_BD = forget_BD * cell_BD + (1 - forget_BD) * candidate_BD
        cells.append(cell_BD)
    return torch.stack(cells, dim=1)
