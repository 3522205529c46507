"""What the environment says about how a process was started."""

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from sparing.errors import UserError
from sparing.launch import Launch, age_s, launch, launched_at

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_WORLD_SIZE", "TORCHELASTIC_RUN_ID")


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def say(monkeypatch: pytest.MonkeyPatch, **said: str) -> Launch:
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    return launch()


def test_without_a_launcher_a_process_is_alone() -> None:
    assert launch() == Launch(rank=0, size=1, local_rank=0, nodes=1, id=None)
    assert abs(launched_at() - datetime.now(UTC)) < timedelta(seconds=5)


def test_torchrun_tells_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    found = say(
        monkeypatch, RANK="5", WORLD_SIZE="8", LOCAL_RANK="1", GROUP_WORLD_SIZE="2",
        TORCHELASTIC_RUN_ID="job",
    )  # fmt: skip
    assert found == Launch(rank=5, size=8, local_rank=1, nodes=2, id="job")
    assert found.describe() == "rank 5 of 8"


def test_without_a_name_a_launch_is_known_by_its_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    found = say(monkeypatch, RANK="0", WORLD_SIZE="2", TORCHELASTIC_RUN_ID="none")
    assert found.id is not None
    assert f":{os.getppid()}:" in found.id
    assert found == launch()
    # Every process of the launcher names a run alike.
    assert abs(launched_at() - launched_at()) < timedelta(milliseconds=100)
    assert launched_at() < datetime.now(UTC)


def test_several_machines_without_a_name_have_none_in_common(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    apart = {"RANK": "0", "WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "2"}
    assert say(monkeypatch, **apart, TORCHELASTIC_RUN_ID="none").id is None
    assert say(monkeypatch, **apart, TORCHELASTIC_RUN_ID="job").id == "job"


def test_variables_of_srun_do_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    assert say(monkeypatch, RANK="1", WORLD_SIZE="4") == Launch(rank=1, size=4)


def test_nonsense_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="WORLD_SIZE must be a whole number, not 'many'"):
        say(monkeypatch, RANK="0", WORLD_SIZE="many")


def test_a_process_has_an_age_and_an_unknown_one_has_none() -> None:
    assert 0 <= (age_s(os.getpid()) or -1.0) < 100_000
    assert age_s(2**22 + 1) is None


# A group's thread that is busy with Python objects when the command is done.
BUSY = """
import sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch._C._distributed_c10d import HashStore
import sparing.cli.main
from sparing.__main__ import run
from sparing.train.distributed.init import leave_group

def command():
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    ddp = DistributedDataParallel(torch.nn.Linear(2, 2))
    work = dist.all_reduce(torch.ones(1), async_op=True)
    work.get_future().then(lambda _: time.sleep(0.3))
    leave_group()
    return 3

sparing.cli.main.main = command
sys.exit(run())
"""


def test_a_busy_thread_neither_holds_up_the_end_nor_changes_it() -> None:
    place = {"RANK": "0", "WORLD_SIZE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", BUSY]
    ended = subprocess.run(command, env=os.environ | place, timeout=60, capture_output=True)
    assert (ended.returncode, ended.stderr) == (3, b"")
