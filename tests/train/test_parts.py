"""Tensors cut up between processes, and whole ones, through the same functions."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.train.crew import Crew, ranks_of
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from sparing.launch import Launch
from sparing.train.parts import alike, assembled, is_part, lengths, own, whole


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
    assert not is_part(full)
    assert own(full) is whole(full) is alike(full, other) is assembled(full, other) is full
    torch.testing.assert_close(torch.stack(lengths([full, other], full))[0], full.norm())


def cut_up(launch: Launch) -> dict[str, Any]:
    ranks_of(launch)
    mesh = init_device_mesh("cpu", (launch.size,))
    tensor = distribute_tensor(rows(), mesh, [Shard(0)])
    own(tensor).add_(1)
    return {
        "is part": is_part(tensor),
        "own": own(tensor).tolist(),
        "whole": whole(tensor).tolist(),
        "alike": own(alike(rows(), tensor)).tolist(),
        "assembled": assembled(own(tensor) * 2, tensor).tolist(),
        "lengths": [length.item() for length in lengths([own(tensor), own(tensor) * 3], tensor)],
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
