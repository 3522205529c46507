"""Several processes that train as one model: lanes dealt out, gradients added up (DDP)."""

import inspect
import json
import math
import zlib
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from sparing.errors import UserError
from sparing.host_copy import AsyncHostCopy
from sparing.launch import Launch
from sparing.models.api import State, pad_length, select_lanes
from sparing.train.config import Reduction
from sparing.train.distributed.world import Loss, World
from sparing.train.progress import Clock
from sparing.train.stopping import Stop


@dataclass(frozen=True, kw_only=True, slots=True)
class WorldConfig:
    """How several processes work together."""

    timeout_s: float = 600.0
    """How long one waits for the others before it gives up."""
    reduction: Reduction = "float32"
    """Precision in which gradients travel."""
    sharded: bool = False
    """Whether weights, gradients and optimizer state are cut up between the processes."""


class DDPWorld(World):
    """One of several processes. All of them make the same calls in the same order."""

    def __init__(self, launch: Launch, device: torch.device, how: WorldConfig) -> None:
        self.rank, self.size, self.device, self.how = launch.rank, launch.size, device, how
        self._unsound: list[int] = []
        self._stop, self._clock = Stop(), Clock(0.0)

    def wrap(self, loss: Loss) -> nn.Module:
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
            find_unused_parameters=loss.model.has_unused_parameters(),
            **once,
        )
        ddp.register_comm_hook(self.how.reduction, added)
        return ddp

    def grad_sync(self, loss: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        """See `World`."""
        assert isinstance(loss, DistributedDataParallel)
        return nullcontext() if last else loss.no_sync()

    def watch(self, stop: Stop, clock: Clock) -> None:
        """See `World`."""
        self._stop, self._clock = stop, clock
        nothing = torch.zeros((), device=self.device)
        self.sync_step(AsyncHostCopy(nothing), nothing)

    def sync_step(self, nats: AsyncHostCopy, norm: Tensor) -> tuple[float, AsyncHostCopy]:
        """See `World`: one all-gather of four numbers."""
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
        return sum(row[0] for row in table), AsyncHostCopy(torch.tensor(table[0][1]))

    def bad_ranks(self) -> str:
        """See `World`."""
        return f" on rank {', '.join(map(str, self._unsound))}" if self._unsound else ""

    def all_reduce(self, tensor: Tensor) -> None:
        """See `World`."""
        dist.all_reduce(tensor)

    def gather_state(self, state: State) -> State:
        """See `World`; tensor by tensor through the host, memories padded to the longest."""
        lengths = torch.tensor([t.size(1) if t.ndim > 1 else 0 for t in state.values()])
        dist.all_reduce(lengths, dist.ReduceOp.MAX)
        return {
            name: torch.cat(self.gather(pad_length(tensor.cpu(), length)))
            for (name, tensor), length in zip(state.items(), lengths.tolist(), strict=True)
        }

    def scatter_state(self, state: State) -> State:
        """See `World`."""
        if not state:
            return {}
        batch = len(next(iter(state.values())))
        own = self.lanes(batch)
        return select_lanes(state, slice(own.start, own.stop))

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """See `World`; as bytes, which every backend can carry whatever they mean."""
        own = tensor.detach().cpu().contiguous()
        if own.numel() == 0:
            return [own] * self.size
        sent = own.view(-1).view(torch.uint8)
        room = [torch.empty_like(sent) for _ in range(self.size)] if self.rank == 0 else None
        dist.gather(sent, room)
        return [own] if room is None else [b.view(own.dtype).view(own.shape) for b in room]

    def broadcast_tensors(self, tensors: Mapping[str, Tensor] | None) -> Mapping[str, Tensor]:
        """See `World`; as bytes, one tensor after the other."""
        own = tensors or {}
        kinds = {n: (str(t.dtype).removeprefix("torch."), t.shape) for n, t in own.items()}
        received = {}
        for name, (dtype, shape) in self.broadcast_object(kinds).items():
            empty = torch.empty(shape, dtype=getattr(torch, dtype))
            received[name] = own[name].contiguous() if name in own else empty
            if received[name].numel():
                dist.broadcast(received[name].view(-1).view(torch.uint8), 0)
        return received

    def broadcast_object(self, facts: Any) -> Any:
        """See `World`."""
        words = torch.tensor(list(json.dumps(facts).encode()), dtype=torch.uint8)
        length = torch.tensor(len(words))
        dist.broadcast(length, 0)
        words = words if self.rank == 0 else torch.empty(int(length), dtype=torch.uint8)
        dist.broadcast(words, 0)
        return json.loads(bytes(words.tolist()))

    def check_equal(self, what: str, facts: Any) -> None:
        """See `World`."""
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
