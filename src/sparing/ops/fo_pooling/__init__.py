"""From a QRNN's three projected gates to its outputs: fo-pooling (arXiv:1611.01576, 2.1).

Axes: B batch, T segment, D width; 3: candidate, forget and output, before their nonlinearities.
"""

import torch
from torch import Tensor

from sparing.ops.fo_pooling import blocked, reference
from sparing.ops.linear import is_cpu_inference


def fo_pooling(
    gates_BT3D: Tensor, initial_BD: Tensor, zoneout: Tensor | float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return outputs (B, T, D) in the gates' precision, and the last cells (B, D), 32+ bits.

    `zoneout` is the share of a cell that is kept regardless of its forget gate: a mask (B, T, D) in
    training, its mean in evaluation.
    """
    plain = not isinstance(zoneout, Tensor) and zoneout == 0
    if plain and gates_BT3D.size(1) >= blocked.SHORTEST and is_cpu_inference(gates_BT3D):
        return blocked.fo_pooling(gates_BT3D, initial_BD)
    if not (plain and gates_BT3D.is_cuda and gates_BT3D.dtype != torch.float64):
        return reference.fo_pooling(gates_BT3D, initial_BD, zoneout)
    # Triton is only installed, and only needed, where there is a GPU.
    from sparing.ops.fo_pooling.fused import fo_pooling as kernel

    return kernel(gates_BT3D, initial_BD)
