"""Inference on a CPU: runs of a few steps side by side, then one pass that joins them.

N runs, L steps of a run; other axes: see the package's docstring.
"""

import math

import torch
from torch import Tensor

from sparing.ops import gated_scan

SHORTEST = 64
"""Fewest steps that are cheaper in runs."""


def fo_pooling(gates_BT3D: Tensor, initial_BD: Tensor) -> tuple[Tensor, Tensor]:
    """See the package's docstring; without zoneout, in the gates' precision."""
    segment = gates_BT3D.size(1)
    # tanh z = 2 sigmoid(2 z) - 1, which torch computes in a fifth of the time.
    candidate_BTD = (2 * gates_BT3D[:, :, 0]).sigmoid_().mul_(2).sub_(1)
    open_BT2D = gates_BT3D[:, :, 1:].sigmoid()
    forget_BTD, output_BTD = open_BT2D.unbind(2)
    steps = math.isqrt(segment)
    whole = segment // steps * steps
    cells_BTD = scan_runs(forget_BTD[:, :whole], candidate_BTD[:, :whole], initial_BD, steps)
    if whole < segment:
        rest = gated_scan.reference(
            forget_BTD[:, whole:], candidate_BTD[:, whole:], cells_BTD[:, -1]
        )
        cells_BTD = torch.cat([cells_BTD, rest], dim=1)
    last_BD = cells_BTD[:, -1].clone()
    return cells_BTD.mul_(output_BTD), last_BD


def scan_runs(forget_BTD: Tensor, candidate_BTD: Tensor, initial_BD: Tensor, steps: int) -> Tensor:
    """Return what `gated_scan` does, for a multiple of `steps`."""
    batch, segment, dim = forget_BTD.shape
    shape = (batch, segment // steps, steps, dim)
    forget_BNLD = forget_BTD.view(shape)
    offset_BTD = torch.addcmul(candidate_BTD, forget_BTD, candidate_BTD, value=-1)
    cells_BNLD = offset_BTD.view(shape)
    # What is left of a run's first cell after each of its steps.
    left_BNLD = forget_BNLD.clone(memory_format=torch.contiguous_format)
    for step in range(1, steps):
        cells_BNLD[:, :, step].addcmul_(forget_BNLD[:, :, step], cells_BNLD[:, :, step - 1])
        left_BNLD[:, :, step].mul_(left_BNLD[:, :, step - 1])
    before = [initial_BD]
    for cell_BD, left_BD in zip(
        cells_BNLD[:, :-1, -1].unbind(1), left_BNLD[:, :-1, -1].unbind(1), strict=True
    ):
        before.append(torch.addcmul(cell_BD, left_BD, before[-1]))
    before_BN1D = torch.stack(before, dim=1)[:, :, None]
    return cells_BNLD.addcmul_(left_BNLD, before_BN1D).flatten(1, 2)
