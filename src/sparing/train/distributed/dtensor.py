"""Tensors of which this process may have a part only, as it is under `--shard`.

Such a tensor is torch's `DTensor`, cut along its first axis. What is done number by number is done
to the part that is here; what needs more asks here. Torch's own module for them is imported where
there are any: that takes the better part of a second.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def is_dtensor(tensor: Tensor) -> bool:
    """Whether other processes have the rest of it."""
    return hasattr(tensor, "full_tensor")


def to_local(tensor: Tensor) -> Tensor:
    """The part of a tensor that is here; writing to it changes the tensor."""
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def full_tensor(tensor: Tensor) -> Tensor:
    """All of a tensor, wherever its parts are; every process must ask for it."""
    full: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full


def distribute_like(full: Tensor, like: Tensor) -> Tensor:
    """`full`, which every process has, cut up as `like` is."""
    if not is_dtensor(like):
        return full
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    return distribute_tensor(
        full.to(like.device), like.device_mesh, like.placements, src_data_rank=None
    )


def full_tensor_of(part: Tensor, like: Tensor) -> Tensor:
    """All of the tensor whose `part` is here, and which is cut up as `like` is."""
    if not is_dtensor(like):
        return part
    from torch.distributed.tensor import DTensor

    assert isinstance(like, DTensor)
    mesh, places = like.device_mesh, like.placements
    return DTensor.from_local(
        part, mesh, places, shape=like.shape, stride=like.stride()
    ).full_tensor()


def norms(parts: Sequence[Tensor], like: Tensor) -> tuple[Tensor, ...]:
    """The norms of tensors whose `parts` are here, cut up as `like` is or not at all."""
    norms: tuple[Tensor, ...] = torch._foreach_norm(list(parts))
    if not is_dtensor(like):
        return norms
    from torch.distributed import all_reduce
    from torch.distributed.tensor import DTensor

    assert isinstance(like, DTensor)
    squares = torch.stack(norms).square()
    all_reduce(squares, group=like.device_mesh.get_group())
    return squares.sqrt().unbind()
