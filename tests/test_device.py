"""Memory limits and the choice of a device."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sparing import device as memory
from sparing.device import Hardware, limit_to_free_ram, pick
from sparing.errors import is_out_of_memory


def test_an_allocation_beyond_the_free_memory_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    held = memory._read_sizes(Path("/proc/self/status"))["VmData"]
    monkeypatch.setattr(memory, "_used_and_free_bytes", lambda: held + 2**28)
    with limit_to_free_ram():
        torch.empty(2**27, dtype=torch.uint8)
        with pytest.raises(RuntimeError) as caught:
            torch.empty(2**29, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
    torch.empty(2**29, dtype=torch.uint8)


def test_a_lower_existing_limit_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_used_and_free_bytes", lambda: 2**50)
    with limit_to_free_ram():
        kept = resource.getrlimit(resource.RLIMIT_DATA)
        monkeypatch.setattr(memory, "_used_and_free_bytes", lambda: 2**51)
        with limit_to_free_ram():
            assert resource.getrlimit(resource.RLIMIT_DATA) == kept


def test_only_failed_allocations_count_as_out_of_memory() -> None:
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert not is_out_of_memory(RuntimeError("shapes do not fit"))


@pytest.mark.parametrize(
    "limit_bytes",
    [
        # With less room a fragmented heap may not hold even one row; one run in ten fails.
        pytest.param(1_100_000_000, marks=pytest.mark.soak),
        pytest.param(1_300_000_000, marks=pytest.mark.soak),
        1_600_000_000,
    ],
)
def test_on_a_cpu_a_batch_that_does_not_fit_is_split(limit_bytes: int, tmp_path: Path) -> None:
    text, run = tmp_path / "text.txt", tmp_path / "run"
    text.write_text("".join(f"{number} lazy dogs\n" for number in range(20_000)))
    wide = ["dim=64", "boom_dim=256"]
    large = ["batch=512", "segment=128", "steps=1", "minutes=null", "evaluate_bytes=1000"]
    changes = [f"model.{each}" for each in wide] + [f"train.{each}" for each in large]
    said = subprocess.run(
        [sys.executable, "-m", "sparing", "train", "quickstart", "--data", text, "--out", run,
         *(word for change in changes for word in ("--set", change))],
        # This machine has more memory, so the process is limited instead.
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes)),
        env=os.environ | {"SPARING_HOME": str(tmp_path / "home")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    entries = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert any("micro-batches" in entry.get("what", "") for entry in entries)


def test_a_gpu_chosen_by_index_becomes_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    assert pick("cuda:1").device == torch.device("cuda:1")
    assert pick("cuda").device == torch.device("cuda")
    assert current == [torch.device("cuda:1")]


@pytest.mark.parametrize(("count", "words"), [(1, ", 1 thread"), (2, ", 2 threads")])
def test_a_cpu_is_described_with_its_threads(
    count: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: count)
    assert Hardware(torch.device("cpu"), "float32").describe().endswith(words)


def test_empty_cache_returns_memory_to_the_kernel() -> None:
    hardware = pick("cpu")
    held = [torch.ones(1 << 14) for _ in range(4000)]
    del held
    before = resident_bytes()
    hardware.empty_cache()
    assert resident_bytes() < before - 2e8


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
