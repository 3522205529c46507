"""How a process was started, read from the environment."""

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from sparing import launch
from sparing.errors import UserError
from sparing.launch import (
    Launch,
    current_launch,
    earlier_refusal,
    launched_at,
    note_refusal,
    seconds_since_start,
)

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_WORLD_SIZE", "TORCHELASTIC_RUN_ID")


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def say(monkeypatch: pytest.MonkeyPatch, **said: str) -> Launch:
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    return current_launch()


def test_without_a_launcher_a_process_is_alone() -> None:
    assert current_launch() == Launch(rank=0, size=1, local_rank=0, nodes=1, id=None)
    before = datetime.now(UTC)
    assert before <= launched_at() <= datetime.now(UTC)


def test_the_rank_is_read_from_the_variables_of_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    found = say(
        monkeypatch, RANK="5", WORLD_SIZE="8", LOCAL_RANK="1", GROUP_WORLD_SIZE="2",
        TORCHELASTIC_RUN_ID="job",
    )  # fmt: skip
    assert found == Launch(rank=5, size=8, local_rank=1, nodes=2, id="job")
    assert found.describe() == "rank 5 of 8"


def test_a_launch_without_a_name_is_identified_by_its_launcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = say(monkeypatch, RANK="0", WORLD_SIZE="2", TORCHELASTIC_RUN_ID="none")
    assert found.id is not None
    assert f":{os.getppid()}:" in found.id
    assert found == current_launch()
    # Every process of the launcher gives a run the same name: the time the launcher started.
    monkeypatch.setattr(launch, "seconds_since_start", {os.getppid(): 100.0}.get)
    before = datetime.now(UTC)
    assert before <= launched_at() + timedelta(seconds=100) <= datetime.now(UTC)


def test_a_launch_on_several_machines_has_an_id_only_if_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    apart = {"RANK": "0", "WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "2"}
    assert say(monkeypatch, **apart, TORCHELASTIC_RUN_ID="none").id is None
    assert say(monkeypatch, **apart, TORCHELASTIC_RUN_ID="job").id == "job"


def test_rank_and_world_size_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    assert say(monkeypatch, RANK="1", WORLD_SIZE="4") == Launch(rank=1, size=4)


def test_a_variable_that_is_no_number_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="WORLD_SIZE must be a whole number, not 'many'"):
        say(monkeypatch, RANK="0", WORLD_SIZE="many")


def test_a_command_refused_once_is_refused_at_every_restart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def start(attempt: int, rank: int, processes: int = 2) -> str | None:
        file = tmp_path / "none_x" / f"attempt_{attempt}" / str(rank) / "error.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
        monkeypatch.setenv("WORLD_SIZE", str(processes))
        return earlier_refusal()

    assert start(0, 0) is None
    # What another program reports is no refusal of ours.
    Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text('{"message": "a lost process"}')
    assert start(0, 1) is None
    note_refusal("sparing: no")
    assert start(1, 0) == start(1, 1) == "sparing: no"
    # A batch that three processes cannot split may suit four.
    assert start(2, 0, processes=4) is None


def test_torchrun_quotes_a_refusal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
    note_refusal("sparing: no such recipe")
    failure = ProcessFailure(0, 1, 2, str(file))
    assert "sparing: no such recipe" in ChildFailedError("sparing", {0: failure}).format_msg()


def test_without_torchrun_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    note_refusal("sparing: no")
    assert earlier_refusal() is None


def test_the_age_of_a_process() -> None:
    assert 0 <= (seconds_since_start(os.getpid()) or -1.0) < 100_000
    assert seconds_since_start(2**22 + 1) is None


# A group's thread that is busy with Python objects when the command is done.
BUSY = """
import sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch._C._distributed_c10d import HashStore
import sparing.cli.main
from sparing.__main__ import run
from sparing.training.distributed.init import leave_group

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


def test_a_busy_thread_does_not_delay_or_change_the_exit() -> None:
    place = {"RANK": "0", "WORLD_SIZE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", BUSY]
    ended = subprocess.run(command, env=os.environ | place, timeout=600, capture_output=True)
    assert (ended.returncode, ended.stderr) == (3, b"")
