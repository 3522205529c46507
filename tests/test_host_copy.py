"""Asynchronous copies to the host."""

import pytest
import torch

from sparing.host_copy import AsyncHostCopy


def test_wait_and_item_return_the_numbers() -> None:
    numbers = torch.tensor([1.5, -2.0], requires_grad=True)
    assert AsyncHostCopy(numbers).wait().tolist() == [1.5, -2.0]
    assert AsyncHostCopy(numbers.sum()).item() == -0.5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_it_waits_for_earlier_work_only() -> None:
    # Its square is itself, to the last digit, however often.
    busy = torch.full((4096, 4096), 1 / 4096, device="cuda")
    for _ in range(20):
        busy = busy @ busy
    copied = AsyncHostCopy(4096 * busy[0, 0])
    for _ in range(200):
        busy = busy @ busy
    after = torch.cuda.Event()
    after.record()
    assert copied.item() == 1.0
    assert not after.query()
