"""Output heads: softmax loss in nats, tied weights, and a loss on some rows of the batch only."""

from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparing.ops.linear import linear
from sparing.units import IGNORE_INDEX as IGNORE_INDEX


class Head(Protocol):
    """The interface of every output layer."""

    def nats(self, hidden_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        """Return the loss of each target in nats, float32; zero for `IGNORE_INDEX`."""
        ...

    def logits(self, hidden_XD: Tensor) -> Tensor:
        """Return unnormalised log-probabilities over the whole vocabulary, any leading axes."""
        ...


class SoftmaxHead(nn.Module):
    """A plain softmax."""

    def __init__(self, weight_VD: nn.Parameter, *, bias: bool = True) -> None:
        super().__init__()
        self.weight = weight_VD
        self.bias = nn.Parameter(weight_VD.new_zeros(weight_VD.size(0))) if bias else None

    @classmethod
    def tied(cls, embedding: nn.Embedding, *, bias: bool = True) -> "SoftmaxHead":
        """Return a head that shares the embedding's weights."""
        assert isinstance(embedding.weight, nn.Parameter)
        return cls(embedding.weight, bias=bias)

    @classmethod
    def uniform(cls, vocab_size: int, dim: int) -> "SoftmaxHead":
        """Return a head with the initial values of `nn.Linear`."""
        head = cls(nn.Parameter(torch.empty(vocab_size, dim)))
        for parameter in head.parameters():
            draw_uniform(parameter, dim)
        return head

    def logits(self, hidden_XD: Tensor) -> Tensor:
        """See `Head`."""
        return linear(hidden_XD, self.weight, self.bias)

    def nats(self, hidden_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        """See `Head`."""
        logits_NV = self.logits(hidden_BTD).flatten(0, 1)
        if logits_NV.element_size() < 4:
            logits_NV = logits_NV.float()
        nats_N = F.cross_entropy(
            logits_NV, targets_BT.flatten(), ignore_index=IGNORE_INDEX, reduction="none"
        )
        return nats_N.view_as(targets_BT)


def draw_uniform(tensor: Tensor, fan_in: int) -> None:
    """Fill with the initial values of `nn.Linear`."""
    nn.init.uniform_(tensor, -(fan_in**-0.5), fan_in**-0.5)


Lanes = Literal["all", "most", "held"]


class HeldOutLanesHead(nn.Module):
    """Wraps a head; gradients come from all lanes, from the held-out ones, or from the rest."""

    def __init__(self, head: Head, share: float) -> None:
        super().__init__()
        self.inner = head
        self.share = share
        self.lanes: Lanes = "all"

    def nats(self, hidden_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        """See `Head`. All losses are returned; lanes with a gradient weigh as much as all would."""
        nats_BT = self.inner.nats(hidden_BTD, targets_BT)
        if self.lanes == "all" or not torch.is_grad_enabled():
            return nats_BT
        value_BT = nats_BT.detach()
        return value_BT + self._weights(nats_BT) * (nats_BT - value_BT)

    def logits(self, hidden_XD: Tensor) -> Tensor:
        """See `Head`."""
        return self.inner.logits(hidden_XD)

    def _weights(self, nats_BT: Tensor) -> Tensor:
        batch = nats_BT.size(0)
        held = min(batch - 1, max(1, round(self.share * batch)))
        if not held:
            raise ValueError("lanes cannot be held out: there is only one")
        selected_B = torch.arange(batch, device=nats_BT.device) >= batch - held
        if self.lanes == "most":
            selected_B = ~selected_B
        count = held if self.lanes == "held" else batch - held
        return (selected_B * (batch / count))[:, None]
