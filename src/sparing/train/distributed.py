"""Several processes that train as one model: lanes dealt out, gradients added up, facts agreed on.

`Ranks` is one process alone, for which everything is a matter of course; `Many` is one of several.
"""

import inspect
import json
import math
import zlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from sparing.arrival import Arrival
from sparing.errors import LostError, UserError
from sparing.launch import Launch
from sparing.models.api import LanguageModel, State, lanes, lengthened
from sparing.train.clock import Clock
from sparing.train.config import Reduction
from sparing.train.rendezvous import meeting_place
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Joining:
    """How several processes work together."""

    timeout_s: float = 600.0
    """How long one waits for the others before it gives up."""
    reduction: Reduction = "float32"
    """Precision in which gradients travel."""
    sharded: bool = False
    """Whether weights, gradients and optimizer state are cut up between the processes."""


class Ranks:
    """One process alone."""

    rank, size = 0, 1

    def lanes(self, batch: int) -> range:
        """The lanes of this process: contiguous, and as many for everybody as can be."""
        return range(self.rank * batch // self.size, (self.rank + 1) * batch // self.size)

    def pieces(self, batch: int, split: int) -> int:
        """Pieces to cut this process's lanes into, so that none is larger than with one process."""
        own = len(self.lanes(batch))
        return next(n for n in range(1, own + 1) if n * self.size >= split and own % n == 0)

    def wrapped(self, loss: Loss) -> nn.Module:
        """The module whose backward pass adds up everybody's gradients."""
        return loss

    def reducing(self, loss: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        """Around one piece's forward and backward; gradients travel with the `last` alone."""
        return nullcontext()

    def whole(self, loss: nn.Module) -> AbstractContextManager[None]:
        """Within, the model has all of its weights here, to be asked as if there were no others."""
        return nullcontext()

    def complete(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """All of each tensor; of use on rank 0 alone."""
        return tensors

    def watch(self, stop: Stop, clock: Clock) -> None:
        """From now on, meetings agree on whether to stop and what time it is."""

    def meet(self, nats: Arrival, norm: Tensor) -> tuple[float, Arrival]:
        """Loss of all lanes, from this process's own, and norm of the gradients.

        The norm may still be on its way: it is known when the device is through with the
        gradients, the loss when it begins with them.
        """
        return nats.number(), Arrival(norm)

    def where(self) -> str:
        """On which ranks the last loss was not finite, as the end of a sentence."""
        return ""

    def sum_(self, tensor: Tensor) -> None:
        """Add up everybody's, in place."""

    def gathered(self, state: State) -> State:
        """The state of all lanes; of use on rank 0 alone."""
        return state

    def dealt(self, state: State) -> State:
        """This process's part of the state of all lanes."""
        return state

    def listed(self, tensor: Tensor) -> list[Tensor]:
        """Everybody's tensor of one shape, on rank 0; elsewhere this process's own."""
        return [tensor]

    def handed_out(self, tensors: Mapping[str, Tensor] | None) -> Mapping[str, Tensor]:
        """What rank 0 has, on the CPU, for everybody; others have nothing to give."""
        return tensors or {}

    def told(self, facts: Any) -> Any:
        """What rank 0 says, for everybody: anything JSON can say."""
        return facts

    def agree(self, what: str, facts: Any) -> None:
        """Refuse to go on where `facts` differ between processes."""


class Many(Ranks):
    """One of several processes. All of them make the same calls in the same order."""

    def __init__(self, launch: Launch, device: torch.device, how: Joining) -> None:
        self.rank, self.size, self.device, self.how = launch.rank, launch.size, device, how
        self._unsound: list[int] = []
        self._stop, self._clock = Stop(), Clock(0.0)

    def wrapped(self, loss: Loss) -> nn.Module:
        """DDP, with one bucket for all gradients: one message per update."""
        if self.device.type == "cuda":
            # The compiled parts are small; cutting them at bucket edges would gain nothing.
            torch._dynamo.config.optimize_ddp = False
        size_bytes = sum(p.nbytes for p in loss.parameters())
        once: dict[str, Any] = {_buffers(): False}
        ddp = DistributedDataParallel(
            loss,
            bucket_cap_mb=1 + math.ceil(size_bytes / 2**20),
            gradient_as_bucket_view=True,
            find_unused_parameters=loss.model.idle(),
            **once,
        )
        ddp.register_comm_hook(self.how.reduction, added)
        return ddp

    def reducing(self, loss: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        """See `Ranks`."""
        assert isinstance(loss, DistributedDataParallel)
        return nullcontext() if last else loss.no_sync()

    def watch(self, stop: Stop, clock: Clock) -> None:
        """See `Ranks`."""
        self._stop, self._clock = stop, clock
        nothing = torch.zeros((), device=self.device)
        self.meet(Arrival(nothing), nothing)

    def meet(self, nats: Arrival, norm: Tensor) -> tuple[float, Arrival]:
        """See `Ranks`: one all-gather of four numbers."""
        figures = torch.stack([nats.numbers.float(), norm.float()])
        own = [float(self._stop.signal), self._clock.elapsed_s()]
        told = torch.tensor(own, dtype=torch.float64).to(figures.device, non_blocking=True)
        mine = torch.cat([figures.double(), told])
        rows = list(mine.new_empty(self.size, len(mine)))
        dist.all_gather(rows, mine)
        table = torch.stack(rows).tolist()
        self._unsound = [rank for rank, row in enumerate(table) if not math.isfinite(row[0])]
        self._stop.agreed = int(max(row[2] for row in table))
        self._clock.agreed_s = table[0][3]
        return sum(row[0] for row in table), Arrival(torch.tensor(table[0][1]))

    def where(self) -> str:
        """See `Ranks`."""
        return f" on rank {', '.join(map(str, self._unsound))}" if self._unsound else ""

    def sum_(self, tensor: Tensor) -> None:
        """See `Ranks`."""
        dist.all_reduce(tensor)

    def gathered(self, state: State) -> State:
        """See `Ranks`; tensor by tensor through the host, memories padded to the longest."""
        lengths = torch.tensor([t.size(1) if t.ndim > 1 else 0 for t in state.values()])
        dist.all_reduce(lengths, dist.ReduceOp.MAX)
        return {
            name: torch.cat(self.listed(lengthened(tensor.cpu(), length)))
            for (name, tensor), length in zip(state.items(), lengths.tolist(), strict=True)
        }

    def dealt(self, state: State) -> State:
        """See `Ranks`."""
        if not state:
            return {}
        batch = len(next(iter(state.values())))
        own = self.lanes(batch)
        return lanes(state, slice(own.start, own.stop))

    def listed(self, tensor: Tensor) -> list[Tensor]:
        """See `Ranks`; as bytes, which every backend can carry whatever they mean."""
        own = tensor.detach().cpu().contiguous()
        if own.numel() == 0:
            return [own] * self.size
        sent = own.view(-1).view(torch.uint8)
        room = [torch.empty_like(sent) for _ in range(self.size)] if self.rank == 0 else None
        dist.gather(sent, room)
        return [own] if room is None else [b.view(own.dtype).view(own.shape) for b in room]

    def handed_out(self, tensors: Mapping[str, Tensor] | None) -> Mapping[str, Tensor]:
        """See `Ranks`; as bytes, one tensor after the other."""
        own = tensors or {}
        kinds = {n: (str(t.dtype).removeprefix("torch."), t.shape) for n, t in own.items()}
        received = {}
        for name, (dtype, shape) in self.told(kinds).items():
            empty = torch.empty(shape, dtype=getattr(torch, dtype))
            received[name] = own[name].contiguous() if name in own else empty
            if received[name].numel():
                dist.broadcast(received[name].view(-1).view(torch.uint8), 0)
        return received

    def told(self, facts: Any) -> Any:
        """See `Ranks`."""
        words = torch.tensor(list(json.dumps(facts).encode()), dtype=torch.uint8)
        length = torch.tensor(len(words))
        dist.broadcast(length, 0)
        words = words if self.rank == 0 else torch.empty(int(length), dtype=torch.uint8)
        dist.broadcast(words, 0)
        return json.loads(bytes(words.tolist()))

    def agree(self, what: str, facts: Any) -> None:
        """See `Ranks`."""
        own = torch.tensor(zlib.crc32(json.dumps(facts, sort_keys=True).encode()))
        sums = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(sums, own)
        odd = [rank for rank, found in enumerate(sums) if found != sums[0]]
        if odd:
            raise UserError(f"rank {odd[0]} has other {what} than rank 0; give all the same")


def _buffers() -> str:
    """The name of DDP's option to send buffers at every step, which torch 2.13 changed."""
    names = inspect.signature(DistributedDataParallel).parameters
    return "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"


def added(reduction: Reduction, bucket: GradBucket) -> Future[Tensor]:
    """Add up a bucket of gradients; the loss was divided by the global count already.

    Waited for here: nothing is left to compute beside it, and what goes wrong is raised rather than
    counted as a sum.
    """
    buffer = bucket.buffer()
    sent = buffer if reduction == "float32" else buffer.to(getattr(torch, reduction))
    dist.all_reduce(sent)
    done: Future[Tensor] = Future(devices=[buffer.device] if buffer.is_cuda else [])
    done.set_result(buffer if sent is buffer else buffer.copy_(sent))
    return done


@contextmanager
def together(launch: Launch, device: torch.device, how: Joining) -> Iterator[Ranks]:
    """Join the other processes of this launch; alone, nothing is joined."""
    if launch.size == 1:
        yield Ranks()
        return
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.set_device(device)
    with _noticing_loss(launch):
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if cuda else "gloo",
            store=meeting_place(launch, how.timeout_s),
            rank=launch.rank,
            world_size=launch.size,
            timeout=timedelta(seconds=how.timeout_s),
            device_id=device if cuda else None,
        )
        yield _kind(how)(launch, device, how)
        # Only after a good end: with a message under way, taking leave could wait for ever.
        leave()


_left: list[dist.ProcessGroup | None] = []
"""Groups that this process has left."""


def leave() -> None:
    """Take leave of the others, but keep the group for as long as this process lives.

    Whoever drops a group last waits for its threads: DDP with the interpreter's lock held, which
    such a thread may need to let go of a tensor. For the same reason `sparing.__main__` ends
    launched processes without taking the interpreter down.
    """
    _left.append(dist.group.WORLD)
    dist.destroy_process_group()


def _kind(how: Joining) -> type[Many]:
    if not how.sharded:
        return Many
    from sparing.train.sharding import Sharded

    return Sharded


@contextmanager
def _noticing_loss(launch: Launch) -> Iterator[None]:
    try:
        yield
    except RuntimeError as problem:
        words = str(problem)
        known = ("gloo", "NCCL", "Socket", "TCPStore", "Connection", "timeout", "timed out")
        if not (isinstance(problem, dist.DistError) or any(word in words for word in known)):
            raise
        reason = "no answer in time" if "imed out" in words or "imeout" in words else "it is gone"
        raise LostError(
            f"{launch.describe()} lost another process ({reason}); the run goes on from its last "
            "checkpoint with --resume, or by itself under torchrun --max-restarts"
        ) from problem
