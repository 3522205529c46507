"""Where the numbers live."""

import pytest
import torch

from sparing.device import pick


def test_a_gpu_asked_for_by_number_becomes_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    assert pick("cuda:1").device == torch.device("cuda:1")
    assert pick("cuda").device == torch.device("cuda")
    assert current == [torch.device("cuda:1")]
