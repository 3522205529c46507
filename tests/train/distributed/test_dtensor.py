"""Tensors cut up between processes, and whole ones, through the same functions."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.train.crew import Crew, world_of
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from sparing.launch import Launch
from sparing.train.distributed.dtensor import (
    distribute_like,
    full_tensor,
    full_tensor_of,
    is_dtensor,
    norms,
    to_local,
)


@pytest.fixture(scope="module")
def two() -> Iterator[Crew]:
    crew = Crew(2)
    yield crew
    crew.close()


def rows() -> Tensor:
    """Three, which two processes cannot share alike."""
    return torch.arange(12.0).reshape(3, 4)


def test_a_whole_tensor_is_all_there_is() -> None:
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


def cut_up(launch: Launch) -> dict[str, Any]:
    world_of(launch)
    mesh = init_device_mesh("cpu", (launch.size,))
    tensor = distribute_tensor(rows(), mesh, [Shard(0)])
    to_local(tensor).add_(1)
    return {
        "is part": is_dtensor(tensor),
        "own": to_local(tensor).tolist(),
        "whole": full_tensor(tensor).tolist(),
        "alike": to_local(distribute_like(rows(), tensor)).tolist(),
        "assembled": full_tensor_of(to_local(tensor) * 2, tensor).tolist(),
        "lengths": [
            length.item() for length in norms([to_local(tensor), to_local(tensor) * 3], tensor)
        ],
    }


def test_a_tensor_cut_up_is_handled_by_the_part_that_is_here(two: Crew) -> None:
    full = rows() + 1
    for found, here in zip(two(cut_up), (slice(0, 2), slice(2, 3)), strict=True):
        assert found["is part"]
        assert found["own"] == full[here].tolist()
        assert found["whole"] == full.tolist()
        assert found["alike"] == rows()[here].tolist()
        assert found["assembled"] == (full * 2).tolist()
        norm = full.norm().item()
        assert found["lengths"] == pytest.approx([norm, 3 * norm])
