"""The definition. Axes: see the package's docstring."""

import torch
from torch import Tensor

from sparing.ops.gated_scan import gated_scan


def fo_pooling(
    gates_BT3D: Tensor, initial_BD: Tensor, zoneout: Tensor | float = 0.0
) -> tuple[Tensor, Tensor]:
    """See the package's docstring."""
    # Small terms of the candidate would be lost in a cell of 16 bits.
    wide = torch.promote_types(gates_BT3D.dtype, torch.float32)
    candidate_BTD, forget_BTD, output_BTD = gates_BT3D.to(wide).unbind(2)
    forget_BTD = torch.sigmoid(forget_BTD)
    if isinstance(zoneout, Tensor) or zoneout:
        share = zoneout.to(wide) if isinstance(zoneout, Tensor) else zoneout
        forget_BTD = torch.lerp(forget_BTD, torch.ones_like(forget_BTD), share)
    cells_BTD = gated_scan(forget_BTD, torch.tanh(candidate_BTD), initial_BD.to(wide))
    y_BTD = torch.sigmoid(output_BTD) * cells_BTD
    return y_BTD.to(gates_BT3D.dtype), cells_BTD[:, -1]
