"""From hidden vectors to the loss of the next token."""

from typing import Protocol

import torch.nn.functional as F
from torch import Tensor, nn

from sparing.padding import IGNORED as IGNORED


class Head(Protocol):
    """What every output layer offers."""

    def nats(self, hidden_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        """Loss of each target in nats, float32; zero where the target is `IGNORED`."""
        ...

    def logits(self, hidden_XD: Tensor) -> Tensor:
        """Unnormalised log-probabilities over the whole vocabulary, any leading axes."""
        ...


class SoftmaxHead(nn.Module):
    """A plain softmax."""

    def __init__(self, weight_VD: nn.Parameter, *, bias: bool = True) -> None:
        super().__init__()
        self.weight = weight_VD
        self.bias = nn.Parameter(weight_VD.new_zeros(weight_VD.size(0))) if bias else None

    @classmethod
    def tied(cls, embedding: nn.Embedding, *, bias: bool = True) -> "SoftmaxHead":
        """One that uses the embedding's vectors."""
        assert isinstance(embedding.weight, nn.Parameter)
        return cls(embedding.weight, bias=bias)

    def logits(self, hidden_XD: Tensor) -> Tensor:
        """See `Head`."""
        return F.linear(hidden_XD, self.weight, self.bias)

    def nats(self, hidden_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        """See `Head`."""
        logits_NV = self.logits(hidden_BTD).flatten(0, 1)
        if logits_NV.element_size() < 4:
            logits_NV = logits_NV.float()
        nats_N = F.cross_entropy(
            logits_NV, targets_BT.flatten(), ignore_index=IGNORED, reduction="none"
        )
        return nats_N.view_as(targets_BT)
