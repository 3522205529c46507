import numpy as np
import pytest
import torch

from sparing.data.prefetch import prefetch
from sparing.data.stream import Stream, StreamConfig
from sparing.data.tokens import Split


def stream() -> Stream:
    split = Split(np.arange(103, dtype=np.uint8), 103, 0, 10)
    return Stream(split, StreamConfig(batch=4, segment=8))


def test_a_cpu_gets_the_very_same_segments() -> None:
    segments = list(stream().one_epoch())
    passed = list(prefetch(iter(segments), torch.device("cpu")))
    assert all(one is other for one, other in zip(segments, passed, strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gets_equal_segments_in_order() -> None:
    device = torch.device("cuda", 0)
    passed = list(prefetch(stream().one_epoch(), device))
    for one, other in zip(stream().one_epoch(), passed, strict=True):
        assert other.inputs_BT.device == other.targets_BT.device == device
        assert torch.equal(one.inputs_BT, other.inputs_BT.cpu())
        assert torch.equal(one.targets_BT, other.targets_BT.cpu())
        assert one[2:] == other[2:]
