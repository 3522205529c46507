"""What a training asks where other processes might matter: lanes, gradients, facts agreed on.

`World` is one process alone, for which everything is a matter of course; `many.DDPWorld` is one of
several.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn

from sparing.host_copy import AsyncHostCopy
from sparing.models.api import LanguageModel, State
from sparing.train.progress import Clock
from sparing.train.stopping import Stop


class Loss(nn.Module):
    """What a segment costs, head included, as one module: DDP and FSDP take hold of modules."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, inputs_BT: Tensor, targets_BT: Tensor, state: State
    ) -> tuple[Tensor, State, Tensor]:
        """Summed nats of the targets, the state after them, and the penalty per token."""
        out = self.model(inputs_BT, state)
        return self.model.head.nats(out.hidden_BTD, targets_BT).sum(), out.state, out.penalty


class World:
    """One process alone."""

    rank, size = 0, 1

    def lanes(self, batch: int) -> range:
        """The lanes of this process: contiguous, and as many for everybody as can be."""
        return range(self.rank * batch // self.size, (self.rank + 1) * batch // self.size)

    def micro_batches(self, batch: int, split: int) -> int:
        """Pieces to cut this process's lanes into, so that none is larger than with one process."""
        own = len(self.lanes(batch))
        return next(n for n in range(1, own + 1) if n * self.size >= split and own % n == 0)

    def wrap(self, loss: Loss) -> nn.Module:
        """The module whose backward pass adds up everybody's gradients."""
        return loss

    def grad_sync(self, loss: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        """Around one piece's forward and backward; gradients travel with the `last` alone."""
        return nullcontext()

    def full_params(self, loss: nn.Module) -> AbstractContextManager[None]:
        """Within, the model has all of its weights here, to be asked as if there were no others."""
        return nullcontext()

    def full_tensors(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """All of each tensor; of use on rank 0 alone."""
        return tensors

    def watch(self, stop: Stop, clock: Clock) -> None:
        """From now on, meetings agree on whether to stop and what time it is."""

    def sync_step(self, nats: AsyncHostCopy, norm: Tensor) -> tuple[float, AsyncHostCopy]:
        """Loss of all lanes, from this process's own, and norm of the gradients.

        The norm may still be on its way: it is known when the device is through with the
        gradients, the loss when it begins with them.
        """
        return nats.number(), AsyncHostCopy(norm)

    def bad_ranks(self) -> str:
        """On which ranks the last loss was not finite, as the end of a sentence."""
        return ""

    def all_reduce(self, tensor: Tensor) -> None:
        """Add up everybody's, in place."""

    def gather_state(self, state: State) -> State:
        """The state of all lanes; of use on rank 0 alone."""
        return state

    def scatter_state(self, state: State) -> State:
        """This process's part of the state of all lanes."""
        return state

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Everybody's tensor of one shape, on rank 0; elsewhere this process's own."""
        return [tensor]

    def broadcast_tensors(self, tensors: Mapping[str, Tensor] | None) -> Mapping[str, Tensor]:
        """What rank 0 has, on the CPU, for everybody; others have nothing to give."""
        return tensors or {}

    def broadcast_object(self, facts: Any) -> Any:
        """What rank 0 says, for everybody: anything JSON can say."""
        return facts

    def check_equal(self, what: str, facts: Any) -> None:
        """Refuse to go on where `facts` differ between processes."""
