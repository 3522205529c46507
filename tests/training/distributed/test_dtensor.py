"""Sharded and full tensors, through the same functions."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.training.workers import Workers, world_of
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from sparing.launch import Launch
from sparing.training.distributed.dtensor import (
    distribute_like,
    full_tensor,
    full_tensor_of,
    is_dtensor,
    norms,
    to_local,
)


@pytest.fixture(scope="module")
def two() -> Iterator[Workers]:
    group = Workers(2)
    yield group
    group.close()


def rows() -> Tensor:
    """Three rows, which two processes cannot share equally."""
    return torch.arange(12.0).reshape(3, 4)


def test_a_full_tensor_is_returned_as_it_is() -> None:
    full, other = rows(), rows() + 1
    assert not is_dtensor(full)
    assert (
        to_local(full)
        is full_tensor(full)
        is distribute_like(full, other)
        is full_tensor_of(full, other)
        is full
    )
    torch.testing.assert_close(torch.stack(norms([full, other], full))[0], full.norm())


def sharded_results(launch: Launch) -> dict[str, Any]:
    world_of(launch)
    mesh = init_device_mesh("cpu", (launch.size,))
    tensor = distribute_tensor(rows(), mesh, [Shard(0)])
    to_local(tensor).add_(1)
    return {
        "is_dtensor": is_dtensor(tensor),
        "local": to_local(tensor).tolist(),
        "full": full_tensor(tensor).tolist(),
        "distributed": to_local(distribute_like(rows(), tensor)).tolist(),
        "assembled": full_tensor_of(to_local(tensor) * 2, tensor).tolist(),
        "norms": [norm.item() for norm in norms([to_local(tensor), to_local(tensor) * 3], tensor)],
    }


def test_a_sharded_tensor_is_handled_by_its_local_shard(two: Workers) -> None:
    full = rows() + 1
    for found, here in zip(two(sharded_results), (slice(0, 2), slice(2, 3)), strict=True):
        assert found["is_dtensor"]
        assert found["local"] == full[here].tolist()
        assert found["full"] == full.tolist()
        assert found["distributed"] == rows()[here].tolist()
        assert found["assembled"] == (full * 2).tolist()
        norm = full.norm().item()
        assert found["norms"] == pytest.approx([norm, 3 * norm])
