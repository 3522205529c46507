"""The definition. Axes: see the package's docstring."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class RotaryTable(NamedTuple):
    """Cosines and sines of the angles at every position of one period."""

    cosine_PF: Tensor
    sine_PF: Tensor


def rotated_entries(
    three_BT3HK: Tensor,
    gain_H: Tensor,
    table: RotaryTable,
    start_B: Tensor,
    before_BHK: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """See the package's docstring."""
    query_BTHK, key_BTHK, value_BTHK = three_BT3HK.unbind(2)
    if before_BHK is not None:
        earlier_B1HK = before_BHK.detach()[:, None].to(key_BTHK)
        key_BTHK = torch.cat([earlier_B1HK, key_BTHK[:, :-1]], dim=1)
    query_BTHK = rotate(_unit(query_BTHK), table, start_B)
    key_BTHK = rotate(_unit(key_BTHK), table, start_B)
    scaled_BTHK = query_BTHK * gain_H[:, None].to(query_BTHK.dtype)
    return scaled_BTHK, torch.stack([key_BTHK, value_BTHK], dim=2)


def rotate(x_BTHK: Tensor, table: RotaryTable, start_B: Tensor) -> Tensor:
    """Rotate channels i and F + i of each vector by the i-th angle of its position."""
    position_BT = start_B[:, None] + torch.arange(x_BTHK.size(1), device=x_BTHK.device)
    cosine_BT1F, sine_BT1F = (
        each_PF[position_BT % each_PF.size(0)].unsqueeze(2).to(x_BTHK.dtype) for each_PF in table
    )
    one, two = x_BTHK.chunk(2, dim=-1)
    rotated = (one * cosine_BT1F + two * sine_BT1F, two * cosine_BT1F - one * sine_BT1F)
    return torch.cat(rotated, dim=-1)


def _unit(vectors: Tensor) -> Tensor:
    return F.rms_norm(vectors, (vectors.size(-1),))
