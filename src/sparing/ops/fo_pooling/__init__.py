"""From a QRNN's three projected gates to its outputs (fo-pooling, arXiv:1611.01576, section 2.1).

Axes: B batch, T segment, D width; 3: candidate, forget and output, before their nonlinearities.
"""

import torch
from torch import Tensor

from sparing.ops.fo_pooling import reference


def fo_pooling(
    gates_BT3D: Tensor, initial_BD: Tensor, stays: Tensor | float = 0.0
) -> tuple[Tensor, Tensor]:
    """Outputs (B, T, D) in the gates' precision, and the last cells (B, D), 32 bits at least.

    `stays` is zoneout: the share of a cell that remains whatever its forget gate says; a mask
    (B, T, D) in training, its mean after it.
    """
    plain = not isinstance(stays, Tensor) and stays == 0
    if not (plain and gates_BT3D.is_cuda and gates_BT3D.dtype != torch.float64):
        return reference.fo_pooling(gates_BT3D, initial_BD, stays)
    # Triton is there where there is a GPU, and only there is it needed.
    from sparing.ops.fo_pooling.fused import fo_pooling as kernel

    return kernel(gates_BT3D, initial_BD)
