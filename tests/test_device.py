"""Where the numbers live."""

import os
from pathlib import Path

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


def test_what_is_forgotten_goes_back_to_the_kernel() -> None:
    hardware = pick("cpu")
    held = [torch.ones(1 << 14) for _ in range(4000)]
    del held
    before = resident_bytes()
    hardware.forget()
    assert resident_bytes() < before - 2e8


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
