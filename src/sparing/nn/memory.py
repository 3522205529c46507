"""What is kept of earlier positions, oldest first.

Axes: B batch, M memory, T segment, S = M + T, X any.
"""

import torch
from torch import Tensor


def extended(memory_BMX: Tensor, fresh_BTX: Tensor) -> Tensor:
    """A memory followed by fresh entries, in the precision of these."""
    return torch.cat([memory_BMX.to(fresh_BTX.dtype), fresh_BTX], dim=1)


def recent(stored_BSX: Tensor, room: int) -> Tensor:
    """The newest entries there is room for; none where there is no room at all."""
    return stored_BSX[:, max(0, stored_BSX.size(1) - max(0, room)) :]
