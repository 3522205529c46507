"""Functions on tensors that may be sharded between processes (`--shard`), or may not.

A sharded tensor is torch's `DTensor`, split along its first axis. Elementwise work is done on the
local shard; what needs more is here. Torch's own module for DTensors takes most of a second to
import, so it is imported only where there are any.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def is_dtensor(tensor: Tensor) -> bool:
    """Whether a tensor is sharded."""
    return hasattr(tensor, "full_tensor")


def to_local(tensor: Tensor) -> Tensor:
    """The shard of this process; writing to it changes the tensor."""
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


def full_tensor(tensor: Tensor) -> Tensor:
    """The full tensor; every process must call this."""
    full: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full


def distribute_like(full: Tensor, like: Tensor) -> Tensor:
    """Shard `full`, which every process has, in the same way as `like`."""
    if not is_dtensor(like):
        return full
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    return distribute_tensor(
        full.to(like.device), like.device_mesh, like.placements, src_data_rank=None
    )


def full_tensor_of(local: Tensor, like: Tensor) -> Tensor:
    """The full tensor whose shard on this process is `local`, sharded in the same way as `like`."""
    if not is_dtensor(like):
        return local
    from torch.distributed.tensor import DTensor

    assert isinstance(like, DTensor)
    mesh, placements = like.device_mesh, like.placements
    return DTensor.from_local(
        local, mesh, placements, shape=like.shape, stride=like.stride()
    ).full_tensor()


def norms(local: Sequence[Tensor], like: Tensor) -> tuple[Tensor, ...]:
    """The norms of the full tensors, given local shards (or full tensors) sharded like `like`."""
    norms: tuple[Tensor, ...] = torch._foreach_norm(list(local))
    if not is_dtensor(like):
        return norms
    from torch.distributed import all_reduce
    from torch.distributed.tensor import DTensor

    assert isinstance(like, DTensor)
    squares = torch.stack(norms).square()
    all_reduce(squares, group=like.device_mesh.get_group())
    return squares.sqrt().unbind()
