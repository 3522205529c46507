"""What all processes of a run must agree on, and the limit on memory."""

import json
import resource
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.runs.conftest import Killed, killed, resume

from sparing.device import Hardware
from sparing.training.distributed.world import World


class Recorder(World):
    """Records what the processes have to agree on."""

    def __init__(self) -> None:
        self.facts: list[str] = []

    def check_equal(self, what: str, facts: Any) -> None:
        self.facts.append(json.dumps(facts, sort_keys=True))


@pytest.mark.parametrize(
    "odd", [["--shard"], ["--checkpoint", "best"], ["--set", "train.precision=bfloat16"]]
)
def test_processes_with_different_options_do_not_agree(
    odd: list[str], killed_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Recorder()
    monkeypatch.setattr("sparing.runs.train.init_world", lambda *_: nullcontext(world))
    monkeypatch.setattr("sparing.runs.train.build_training", killed)
    for more in ([], [], odd):
        with pytest.raises(Killed):
            resume(killed_run, *more)
    first, again, other = world.facts
    assert first == again != other


def test_processes_agree_on_the_precision_of_the_device(
    killed_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Recorder()
    monkeypatch.setattr("sparing.runs.train.init_world", lambda *_: nullcontext(world))
    monkeypatch.setattr("sparing.runs.train.build_training", killed)
    for precision in ("float32", "bfloat16"):
        hardware = Hardware(torch.device("cpu"), precision)  # type: ignore[arg-type]
        monkeypatch.setattr("sparing.device.pick", lambda *_, found=hardware: found)
        with pytest.raises(Killed):
            resume(killed_run)
    assert world.facts[0] != world.facts[1]


def test_on_a_cpu_training_takes_no_more_memory_than_is_free(
    killed_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = []

    def look(*_: Any, **__: Any) -> None:
        limits.append(resource.getrlimit(resource.RLIMIT_DATA))
        raise Killed

    before = resource.getrlimit(resource.RLIMIT_DATA)
    monkeypatch.setattr("sparing.device._used_and_free_bytes", lambda: 2**50)
    monkeypatch.setattr("sparing.runs.train.build_training", look)
    with pytest.raises(Killed):
        resume(killed_run)
    assert limits == [(2**50, before[1])]
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
