"""Weights, gradients and optimizer state cut up between processes (FSDP2), for large models."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from sparing.train.distributed.ddp import DDPWorld
from sparing.train.distributed.dtensor import full_tensor
from sparing.train.distributed.world import Loss


class FSDPWorld(DDPWorld):
    """One of several processes, each with a part of every tensor."""

    def wrap(self, loss: Loss) -> nn.Module:
        """FSDP: each part's gradients are added up and handed to their owners as they are ready."""
        mesh = init_device_mesh(self.device.type, (self.size,))
        reduce = getattr(torch, self.how.reduction)
        policy = MixedPrecisionPolicy(reduce_dtype=reduce, cast_forward_inputs=False)
        for module in (*loss.model.shard_parts(), loss):
            sharded = fully_shard(module, mesh=mesh, mp_policy=policy)
            # The loss was divided by the global count already; and Gloo can do no more than add.
            sharded.set_gradient_divide_factor(1.0)
            sharded.set_force_sum_reduction_for_comms(True)
        # Else the first part to be called, in an evaluation, would take itself for the whole.
        sharded._get_fsdp_state()._lazy_init()
        return loss

    def grad_sync(self, loss: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        """See `World`."""
        assert isinstance(loss, FSDPModule)
        loss.set_requires_gradient_sync(last)
        return nullcontext()

    @contextmanager
    def full_params(self, loss: nn.Module) -> Iterator[None]:
        """See `World`."""
        modules = [module for module in loss.modules() if isinstance(module, FSDPModule)]
        for module in modules:
            module.unshard()
            module.set_reshard_after_forward(False, recurse=False)
        for parameter in loss.parameters():
            # FSDP fills them without a trace, and a model may have kept what it made of them.
            torch.autograd.graph.increment_version(parameter)
        try:
            yield
        finally:
            for module in modules:
                module.set_reshard_after_forward(module is not loss, recurse=False)
                module.reshard()

    def full_tensors(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """See `World`; one after the other through the host: together they may not fit the device.

        World other than the first keep none.
        """
        found = {}
        for name, tensor in tensors.items():
            full = full_tensor(tensor.detach())
            if self.rank == 0:
                found[name] = full.cpu()
        return found
