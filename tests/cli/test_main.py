"""How errors are reported, and by which of several processes."""

import errno
from pathlib import Path

import pytest
import torch
from tests.cli.conftest import Sparing

from sparing.cli.main import _message
from sparing.errors import LostProcessError, UserError


@pytest.fixture
def second(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is the second of two on a machine."""
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("second")
def test_a_failing_process_reports_its_rank(sparing: Sparing) -> None:
    said = sparing("train", "quickstart", "--device", "tpu", "--out", "nowhere")
    assert said.status == 2
    assert said.err.startswith("sparing: rank 1 of 2: unknown device 'tpu'")
    assert len(said.err.splitlines()) == 1


@pytest.mark.usefixtures("second")
def test_a_usage_error_is_reported_once_per_machine(
    sparing: Sparing, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = sparing("train", "--no-such-option")
    assert (said.status, said.err) == (2, "")
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert "rank 1 of 2" in sparing("train", "--no-such-option").err


@pytest.mark.usefixtures("second")
def test_an_invalid_world_size_is_one_line(
    sparing: Sparing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "many")
    said = sparing("train", "quickstart", "--out", "nowhere")
    assert said.err.splitlines() == [
        "sparing: WORLD_SIZE must be a whole number, not 'many'; torchrun sets it"
    ]


@pytest.mark.usefixtures("second")
def test_several_machines_need_a_name_for_their_launch(
    sparing: Sparing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    said = sparing("train", "quickstart", "--out", "nowhere")
    assert said.status == 2
    assert "on several machines, give torchrun the same --rdzv-id NAME" in said.err


@pytest.mark.parametrize(
    ("problem", "final"),
    [
        (UserError("no such corpus"), True),
        (LostProcessError("rank 1 has ended"), False),
        (OSError(errno.ENOSPC, "no space"), False),
        (torch.OutOfMemoryError("out of memory"), False),
    ],
)
def test_only_a_refusal_keeps_torchrun_from_trying_again(
    problem: Exception,
    final: bool,
    sparing: Sparing,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    def fail(*_: object) -> None:
        raise problem

    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    monkeypatch.setattr("sparing.cli.train.train_run", fail)
    assert sparing("train", "quickstart", "--out", tmp_path / "run").status == 2
    assert (tmp_path / "error.json").exists() == final


@pytest.mark.parametrize("numbers", [1 << 50, 1 << 62])
def test_a_failed_allocation_is_reported_as_out_of_memory(numbers: int) -> None:
    with pytest.raises(RuntimeError) as refused:
        torch.empty(numbers)
    assert "out of memory; choose" in (_message(refused.value) or "")
    assert _message(RuntimeError("a bug")) is None
