"""Averaging of the weights along the way: ASGD, and NT-ASGD, which begins it by itself.

Non-monotone triggering is that of the AWD-LSTM code (arXiv:1708.02182): the paper's text differs,
and its authors say that the code is right.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from sparing.train.distributed.dtensor import to_local

ASLEEP = -1
"""In place of the number of averaged steps, before averaging has begun."""


class Averaging:
    """The mean of the weights after every step since averaging began.

    `patience` is how many of the latest valid losses NT-ASGD leaves out when it asks whether an
    earlier one was better; 0 averages from the first step.
    """

    def __init__(self, named: Mapping[str, nn.Parameter], patience: int = 0) -> None:
        self.named, self.patience = dict(named), patience
        self.means = {name: torch.zeros_like(p) for name, p in self.named.items()}
        # On the host, as only the host asks. The first loss is the least of all older ones, the
        # others the latest; infinite until there are so many.
        self.steps = torch.tensor(ASLEEP if patience else 0)
        self.losses = torch.full((1 + patience,), torch.inf, dtype=torch.float64)

    @torch.no_grad()
    def after_step(self) -> None:
        """Take the present weights into the mean."""
        if int(self.steps) == ASLEEP:
            return
        self.steps += 1
        means, weights = self._pairs()
        torch._foreach_lerp_(means, weights, 1 / int(self.steps))

    def judged(self, loss_nats: float) -> None:
        """Hear of a valid loss; averaging begins when it is worse than one long ago."""
        if not self.patience:
            return
        if int(self.steps) == ASLEEP and loss_nats > float(self.losses[0]):
            self.steps.zero_()
        self.losses[0] = torch.minimum(self.losses[0], self.losses[1])
        self.losses[1:] = torch.cat([self.losses[2:], self.losses.new_tensor([loss_nats])])

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Within, the model has the mean weights, if there are any yet."""
        if int(self.steps) < 1:
            yield
            return
        means, weights = self._pairs()
        with torch.no_grad():
            present = [weight.clone() for weight in weights]
            torch._foreach_copy_(weights, means)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(weights, present)

    def tensors(self) -> dict[str, Tensor]:
        """The whole state; the tensors themselves, not copies."""
        means = {f"{name}/mean": mean for name, mean in self.means.items()}
        return {**means, "averaging/steps": self.steps, "averaging/losses": self.losses}

    def _pairs(self) -> tuple[list[Tensor], list[Tensor]]:
        pairs = self.means.values(), self.named.values()
        means, weights = ([to_local(tensor) for tensor in tensors] for tensors in pairs)
        return means, weights
