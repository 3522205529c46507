"""A head whose loss teaches from some lanes only.

Lanes are contiguous parts of the training text and never change places, so lanes kept apart are a
held-out text; and their state is carried like any other's.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from sparing.nn.head import Head

Lanes = Literal["all", "most", "held"]


class LaneHead(nn.Module):
    """Another head, with gradient from all lanes, or from the held ones, or from the rest."""

    def __init__(self, head: Head, share: float) -> None:
        super().__init__()
        self.inner = head
        self.share = share
        self.lanes: Lanes = "all"

    def nats(self, hidden_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        """See `Head`. Every lane's loss is told; those that teach weigh as much as all would."""
        nats_BT = self.inner.nats(hidden_BTD, targets_BT)
        if self.lanes == "all" or not torch.is_grad_enabled():
            return nats_BT
        told_BT = nats_BT.detach()
        return told_BT + self._weights(nats_BT) * (nats_BT - told_BT)

    def logits(self, hidden_XD: Tensor) -> Tensor:
        """See `Head`."""
        return self.inner.logits(hidden_XD)

    def _weights(self, nats_BT: Tensor) -> Tensor:
        batch = nats_BT.size(0)
        held = min(batch - 1, max(1, round(self.share * batch)))
        if not held:
            raise ValueError("lanes cannot be kept apart: there is only one")
        teach_B = torch.arange(batch, device=nats_BT.device) >= batch - held
        if self.lanes == "most":
            teach_B = ~teach_B
        teachers = held if self.lanes == "held" else batch - held
        return (teach_B * (batch / teachers))[:, None]
