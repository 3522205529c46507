"""The multiplicative LSTM's recurrence (arXiv:1609.07959).

Axes: B batch, T segment, D width, G = 4 D gates in the order input, forget, output, candidate.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from sparing.ops.mlstm import batched, reference


class Inputs(NamedTuple):
    """All that one segment is computed from."""

    factor_BTD: Tensor
    """Input's factor of the intermediate vector, W_mx x."""
    gates_BTG: Tensor
    """Input's share of the gates, W_hx x + b."""
    w_factor_DD: Tensor
    """W_mh: from the hidden vector to its own factor."""
    w_gates_GD: Tensor
    """W_hm: from the intermediate vector to the gates."""
    hidden_BD: Tensor
    cell_BD: Tensor
    mask_BD: Tensor
    """Multiplies every hidden vector before it is put out and fed back; ones for no dropout."""


def mlstm(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Hidden vectors of every position (B, T, D) and the last cell (B, D).

    Products are computed in the dtype of the weights, everything else in that of the cell.
    """
    scan = batched.mlstm if torch.is_grad_enabled() else reference.mlstm
    return scan(*inputs)
