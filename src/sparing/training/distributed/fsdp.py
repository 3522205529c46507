"""Sharded training (FSDP2): weights, gradients and optimizer state split between processes."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from sparing.training.distributed.ddp import DDPWorld
from sparing.training.distributed.dtensor import full_tensor
from sparing.training.distributed.world import SegmentLoss


class FSDPWorld(DDPWorld):
    """One of several processes, each with a shard of every tensor."""

    def wrap(self, loss: SegmentLoss) -> nn.Module:
        """Shard each part of the model; its gradients are reduce-scattered when they are ready."""
        mesh = init_device_mesh(self.device.type, (self.size,))
        reduce = getattr(torch, self.config.reduction)
        policy = MixedPrecisionPolicy(reduce_dtype=reduce, cast_forward_inputs=False)
        for module in (*loss.model.shard_parts(), loss):
            sharded = fully_shard(module, mesh=mesh, mp_policy=policy)
            # The loss has already been divided by the global count, and Gloo can only sum.
            sharded.set_gradient_divide_factor(1.0)
            sharded.set_force_sum_reduction_for_comms(True)
        # Otherwise the first part that an evaluation calls would become FSDP's root module.
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
            # FSDP writes parameters without changing their version, which model caches rely on.
            torch.autograd.graph.increment_version(parameter)
        try:
            yield
        finally:
            for module in modules:
                module.set_reshard_after_forward(module is not loss, recurse=False)
                module.reshard()

    def full_tensors(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """See `World`; one tensor after the other, as all of them may not fit on the device.

        Ranks other than 0 keep none.
        """
        found = {}
        for name, tensor in tensors.items():
            full = full_tensor(tensor.detach())
            if self.rank == 0:
                found[name] = full.cpu()
        return found
