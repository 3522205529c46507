"""Data parallel training (DDP): each process reads its own lanes, gradients are summed."""

import inspect
import json
import math
import zlib
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
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
from sparing.training.config import Reduction
from sparing.training.distributed.world import SegmentLoss, World, WorldConfig
from sparing.training.stopping import Clock, Stop


class DDPWorld(World):
    """One of several processes, each with the full model. All make the same calls in order."""

    def __init__(self, launch: Launch, device: torch.device, config: WorldConfig) -> None:
        self.rank, self.size, self.device, self.config = launch.rank, launch.size, device, config
        self._bad_ranks: list[int] = []
        self._stop, self._clock = Stop(), Clock(0.0)

    def wrap(self, loss: SegmentLoss) -> nn.Module:
        """Wrap in DDP with a single bucket for all gradients: one message per update."""
        if self.device.type == "cuda":
            # Compiled parts are small; splitting them at bucket edges would gain nothing.
            torch._dynamo.config.optimize_ddp = False
        size_bytes = sum(p.nbytes for p in loss.parameters())
        buffers: dict[str, Any] = {_sync_buffers_option(): False}
        ddp = DistributedDataParallel(
            loss,
            bucket_cap_mb=1 + math.ceil(size_bytes / 2**20),
            gradient_as_bucket_view=True,
            find_unused_parameters=loss.model.has_unused_parameters(),
            **buffers,
        )
        ddp.register_comm_hook(self.config.reduction, all_reduce_hook)
        return ddp

    def grad_sync(self, loss: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        """See `World`."""
        assert isinstance(loss, DistributedDataParallel)
        return nullcontext() if last else loss.no_sync()

    def attach(self, stop: Stop, clock: Clock) -> None:
        """See `World`."""
        self._stop, self._clock = stop, clock
        zero = torch.zeros((), device=self.device)
        self.sync_step(AsyncHostCopy(zero), zero)

    def sync_step(self, nats: AsyncHostCopy, norm: Tensor) -> tuple[float, AsyncHostCopy]:
        """See `World`; a single all-gather of loss, norm, signal and time."""
        measured = torch.stack([nats.numbers.float(), norm.float()])
        status = [float(self._stop.signal), self._clock.elapsed_s()]
        sent = torch.tensor(status, dtype=torch.float64).to(measured.device, non_blocking=True)
        local = torch.cat([measured.double(), sent])
        rows = list(local.new_empty(self.size, len(local)))
        dist.all_gather(rows, local)
        table = torch.stack(rows).tolist()
        self._bad_ranks = [rank for rank, row in enumerate(table) if not math.isfinite(row[0])]
        self._stop.agreed = int(max(row[2] for row in table))
        self._clock.agreed_s = table[0][3]
        return sum(row[0] for row in table), AsyncHostCopy(torch.tensor(table[0][1]))

    def bad_ranks(self) -> str:
        """See `World`."""
        return f" on rank {', '.join(map(str, self._bad_ranks))}" if self._bad_ranks else ""

    def all_reduce(self, tensor: Tensor) -> None:
        """See `World`."""
        dist.all_reduce(tensor)

    def gather_state(self, state: State) -> State:
        """See `World`; tensor by tensor through the CPU, memories padded to the longest."""
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
        local = self.lanes(batch)
        return select_lanes(state, slice(local.start, local.stop))

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """See `World`; sent as bytes, which every backend supports for every dtype."""
        local = tensor.detach().cpu().contiguous()
        if local.numel() == 0:
            return [local] * self.size
        sent = local.view(-1).view(torch.uint8)
        received = [torch.empty_like(sent) for _ in range(self.size)] if self.rank == 0 else None
        dist.gather(sent, received)
        if received is None:
            return [local]
        return [each.view(local.dtype).view(local.shape) for each in received]

    def broadcast_tensors(self, tensors: Mapping[str, Tensor] | None) -> Mapping[str, Tensor]:
        """See `World`; sent as bytes, one tensor after the other."""
        local = tensors or {}
        kinds = {n: (str(t.dtype).removeprefix("torch."), t.shape) for n, t in local.items()}
        received = {}
        for name, (dtype, shape) in self.broadcast_object(kinds).items():
            empty = torch.empty(shape, dtype=getattr(torch, dtype))
            received[name] = local[name].contiguous() if name in local else empty
            if received[name].numel():
                dist.broadcast(received[name].view(-1).view(torch.uint8), 0)
        return received

    def broadcast_object(self, facts: Any) -> Any:
        """See `World`."""
        encoded = torch.tensor(list(json.dumps(facts).encode()), dtype=torch.uint8)
        length = torch.tensor(len(encoded))
        dist.broadcast(length, 0)
        encoded = encoded if self.rank == 0 else torch.empty(int(length), dtype=torch.uint8)
        dist.broadcast(encoded, 0)
        return json.loads(bytes(encoded.tolist()))

    def check_equal(self, what: str, facts: Any) -> None:
        """See `World`."""
        local = torch.tensor(zlib.crc32(json.dumps(facts, sort_keys=True).encode()))
        sums = [torch.empty_like(local) for _ in range(self.size)]
        dist.all_gather(sums, local)
        different = [rank for rank, found in enumerate(sums) if found != sums[0]]
        if different:
            raise UserError(
                f"rank {different[0]} has other {what} than rank 0; they must be the same"
            )


def _sync_buffers_option() -> str:
    """The name of DDP's option to broadcast buffers in every step, which torch 2.13 changed."""
    names = inspect.signature(DistributedDataParallel).parameters
    return "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"


def all_reduce_hook(reduction: Reduction, bucket: GradBucket) -> Future[Tensor]:
    """Sum a bucket of gradients; the loss has already been divided by the global token count.

    The call is synchronous: there is no computation left to overlap it with, and a failure is
    raised here rather than taken for a sum.
    """
    buffer = bucket.buffer()
    sent = buffer if reduction == "float32" else buffer.to(getattr(torch, reduction))
    dist.all_reduce(sent)
    done: Future[Tensor] = Future(devices=[buffer.device] if buffer.is_cuda else [])
    done.set_result(buffer if sent is buffer else buffer.copy_(sent))
    return done
