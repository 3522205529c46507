"""The definition: one step after the other."""

import torch
import torch.nn.functional as F
from torch import Tensor


def mlstm(  # noqa: PLR0913  named in the package's Inputs
    factor_BTD: Tensor,
    gates_BTG: Tensor,
    w_factor_DD: Tensor,
    w_gates_GD: Tensor,
    hidden_BD: Tensor,
    cell_BD: Tensor,
    mask_BD: Tensor,
) -> tuple[Tensor, Tensor]:
    """See the package's docstring."""
    hiddens, low, wide = [], w_gates_GD.dtype, cell_BD.dtype
    for factor_BD, gates_BG in zip(factor_BTD.unbind(1), gates_BTG.unbind(1), strict=True):
        middle_BD = factor_BD * F.linear(hidden_BD.to(low), w_factor_DD)
        gates_BG = gates_BG + F.linear(middle_BD.to(low), w_gates_GD)
        i, f, o, candidate = gates_BG.to(wide).chunk(4, dim=-1)
        cell_BD = torch.sigmoid(f) * cell_BD + torch.sigmoid(i) * torch.tanh(candidate)
        hidden_BD = torch.sigmoid(o) * torch.tanh(cell_BD) * mask_BD
        hiddens.append(hidden_BD)
    return torch.stack(hiddens, dim=1), cell_BD
