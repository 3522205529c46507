"""The elementwise recurrence c_t = f_t * c_{t-1} + (1 - f_t) * z_t of QRNN and its kin.

Axes: B batch, T segment, D width.
"""

from torch import Tensor

from sparing.ops.gated_scan import doubling, reference


def gated_scan(forget_BTD: Tensor, candidate_BTD: Tensor, initial_BD: Tensor) -> Tensor:
    """All cells c_1 .. c_T, given c_0 and forget gates in [0, 1]."""
    # A handful of steps is cheaper one by one than in log2(T) passes over everything.
    scan = reference.gated_scan if forget_BTD.size(1) <= 4 else doubling.gated_scan
    return scan(forget_BTD, candidate_BTD, initial_BD)
