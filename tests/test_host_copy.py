"""Numbers on their way."""

import pytest
import torch

from sparing.host_copy import AsyncHostCopy


def test_what_was_asked_for_is_read() -> None:
    asked = torch.tensor([1.5, -2.0], requires_grad=True)
    assert AsyncHostCopy(asked).read().tolist() == [1.5, -2.0]
    assert AsyncHostCopy(asked.sum()).number() == -0.5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_it_waits_for_what_was_told_before_and_for_nothing_told_after() -> None:
    # Its square is itself, to the last digit, however often.
    busy = torch.full((4096, 4096), 1 / 4096, device="cuda")
    for _ in range(20):
        busy = busy @ busy
    arrival = AsyncHostCopy(4096 * busy[0, 0])
    for _ in range(200):
        busy = busy @ busy
    after = torch.cuda.Event()
    after.record()
    assert arrival.number() == 1.0
    assert not after.query()
