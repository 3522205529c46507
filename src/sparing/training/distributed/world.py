"""The processes of a training, with torch.distributed's verbs.

`World` is a single process, for which every call returns its argument; `DDPWorld` and `FSDPWorld`
are one of several processes. All processes make the same calls in the same order.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from sparing.host_copy import AsyncHostCopy
from sparing.models.api import LanguageModel, State
from sparing.training.config import Reduction
from sparing.training.stopping import Clock, Stop


@dataclass(frozen=True, kw_only=True, slots=True)
class WorldConfig:
    """How several processes train together."""

    timeout_s: float = 600.0
    """How long a process waits for the others before it gives up."""
    reduction: Reduction = "float32"
    """Precision in which gradients are reduced."""
    sharded: bool = False
    """Whether weights, gradients and optimizer state are sharded across the processes."""


class SegmentLoss(nn.Module):
    """The model and its loss as one module, which is what DDP and FSDP wrap."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, inputs_BT: Tensor, targets_BT: Tensor, state: State
    ) -> tuple[Tensor, State, Tensor]:
        """Summed nats of the targets, the next state, and the penalty per token."""
        out = self.model(inputs_BT, state)
        return self.model.head.nats(out.hidden_BTD, targets_BT).sum(), out.state, out.penalty


class World:
    """A single process."""

    rank, size = 0, 1

    def lanes(self, batch: int) -> range:
        """The contiguous lanes of this process; numbers differ by at most one between ranks."""
        return range(self.rank * batch // self.size, (self.rank + 1) * batch // self.size)

    def micro_batches(self, batch: int, micro_batches: int) -> int:
        """Micro-batches of this process, none of them larger than with a single process."""
        local = len(self.lanes(batch))
        counts = range(1, local + 1)
        return next(n for n in counts if n * self.size >= micro_batches and local % n == 0)

    def wrap(self, loss: SegmentLoss) -> nn.Module:
        """A module whose backward pass sums the gradients of all processes."""
        return loss

    def grad_sync(self, loss: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        """Context of a micro-batch's forward and backward; only the `last` reduces gradients."""
        return nullcontext()

    def full_params(self, loss: nn.Module) -> AbstractContextManager[None]:
        """Context in which the model has its full parameters on this process."""
        return nullcontext()

    def full_tensors(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The full tensors; guaranteed on rank 0 only."""
        return tensors

    def attach(self, stop: Stop, clock: Clock) -> None:
        """Let `sync_step` agree on `stop` and `clock` from now on."""

    def sync_step(self, nats: AsyncHostCopy, norm: Tensor) -> tuple[float, AsyncHostCopy]:
        """Sum the loss over all processes; return it with the norm of the gradients.

        The loss is known when the backward pass begins, the norm when it ends. With one process
        only the loss is waited for.
        """
        return nats.item(), AsyncHostCopy(norm)

    def bad_ranks(self) -> str:
        """The ranks whose last loss was not finite, as the end of a sentence."""
        return ""

    def all_reduce(self, tensor: Tensor) -> None:
        """Sum a tensor over all processes, in place."""

    def gather_state(self, state: State) -> State:
        """The state of the lanes of all processes; complete on rank 0 only."""
        return state

    def scatter_state(self, state: State) -> State:
        """The lanes of this process, given the state of all lanes."""
        return state

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all processes, which have one shape, on rank 0; else the local one."""
        return [tensor]

    def broadcast_tensors(self, tensors: Mapping[str, Tensor] | None) -> Mapping[str, Tensor]:
        """Send rank 0's tensors to all processes, through the CPU; other ranks pass None."""
        return tensors or {}

    def broadcast_object(self, facts: Any) -> Any:
        """Send rank 0's object to all processes; it must be JSON."""
        return facts

    def check_equal(self, what: str, facts: Any) -> None:
        """Raise a UserError if `facts` differ between processes."""
