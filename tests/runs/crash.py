"""A small run that is killed at its n-th change to the disk, in a process forked from this one."""

import itertools
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import torch
from tests.models.tiny import CONFIGS

import sparing.runs.train as run_module
from sparing.config import described
from sparing.data.tokens import DataConfig
from sparing.files import read_object
from sparing.runs.config import EvaluateConfig, RunConfig, with_settings
from sparing.runs.folder import RunFolder, is_run
from sparing.runs.train import TrainOptions, train
from sparing.training import checkpoint, journal
from sparing.training.config import TrainConfig
from sparing.training.journal import TIMINGS
from sparing.training.optim import OptimConfig

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
KILLED, FAILED = 99, 98
AT_FIT = -1
"""The moment before the first step."""
OPTIMIZERS = {"awd_lstm": "ntasgd", "stack": "muon", "transformer_xl": "adamw"}
MEASURED = {*TIMINGS, "finished_s", "spent_s", "logged_s", "journal_bytes"}
"""Fields that depend on the clock, or on the digits of such a field."""


def small_run(family: str, corpus: Path) -> RunConfig:
    """Seven steps with three times `last`, four validations, and dropout."""
    model = CONFIGS[family][1]
    run = RunConfig(
        recipe="tiny",
        family=family,
        model=model,
        data=DataConfig(corpus=str(corpus)),
        train=TrainConfig(
            batch=4,
            segment=6,
            steps=7,
            log_every=2,
            checkpoint_every=3,
            evaluate_every=2,
            evaluate_bytes=60,
            state_reset=0.2,
        ),
        optim=OptimConfig(name=OPTIMIZERS.get(family, "lamb"), lr=1e-2),  # type: ignore[arg-type]
        evaluate=EvaluateConfig(batch=2, segment=16),
    )
    paths = [path for path, _, _ in described(model, "model.") if ".dropout" in path]
    return with_settings(run, [f"{path}=0.2" for path in paths])


class Disk:
    """Counts the changes to a folder, and ends the process at number `moment`, or before `fit`."""

    def __init__(self, folder: Path, moment: int | None, pipe: int) -> None:
        self.folder, self.moment, self.pipe, self.count = str(folder), moment, pipe, 0

    def watch(self) -> None:
        """Count what Python, `fsync` and safetensors do from now on; there is no way back."""
        sys.addaudithook(self._audit)
        fsync, save_file = os.fsync, checkpoint.save_file

        def counted_fsync(handle: int) -> None:
            self._change(lambda: None)
            fsync(handle)

        def counted_save(tensors: Any, path: Path) -> None:
            self._change(lambda: path.write_bytes(b"half"))
            save_file(tensors, path)

        os.fsync, checkpoint.save_file = counted_fsync, counted_save  # type: ignore[assignment]
        if self.moment == AT_FIT:
            run_module.fit = lambda *_: self._die()  # type: ignore[assignment]

    def report(self) -> None:
        """Tell the parent how many changes there were."""
        os.write(self.pipe, str(self.count).encode())

    def _die(self) -> NoReturn:
        self.report()
        os._exit(KILLED)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and arguments[2] & WRITING and self._ours(arguments[0]):
            # A write that is cut short.
            self._change(lambda: _append(arguments[0], b'{"kind": "tr'))
        # -1 stands for no open folder; with one, as `rmtree` has it, paths are relative to that.
        elif event in CHANGES and (self._ours(arguments[0]) or -1 not in arguments[1:]):
            self._change(lambda: None)

    def _ours(self, path: Any) -> bool:
        name = os.fsdecode(path) if isinstance(path, str | bytes | Path) else ""
        return name.startswith(self.folder) and not name.endswith("lock")

    def _change(self, leave: Callable[[], object]) -> None:
        self.count += 1
        if self.count == self.moment:
            leave()
            self._die()


def _append(path: Any, half: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(handle, half)


def trained(
    run: RunConfig | None, path: Path, moment: int | None = None, name: str = "last"
) -> tuple[int, int]:
    """Start or resume a run in a process of its own, by default with the settings in its folder.

    Returns the exit status and the number of changes to the disk.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Newer Pythons warn of threads in the parent; torch has one thread here.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        _train_and_exit(run, path, Disk(path, moment, writing), name)
    os.close(writing)
    _, status = os.waitpid(child, 0)
    with open(reading, "rb") as pipe:
        return os.waitstatus_to_exitcode(status), int(pipe.read() or 0)


def _train_and_exit(run: RunConfig | None, path: Path, disk: Disk, name: str) -> None:
    status = FAILED
    try:
        torch.set_num_threads(1)
        disk.watch()
        options = TrainOptions(resume=is_run(path), checkpoint=name, progress=False, device="cpu")
        status = train(run or RunFolder(path).config(), path, options)
        disk.report()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def evidence(path: Path) -> dict[str, Any]:
    """Everything in a run folder that a kill must not change."""
    return {
        "names": sorted(str(each.relative_to(path)) for each in path.rglob("*")),
        "journal": [_timeless(entry) for entry in journal.read(path / "metrics.jsonl")],
        "results": _timeless(RunFolder(path).results()),
        "config": RunFolder(path).config(),
        **{str(file.relative_to(path)): content for file, content in _contents(path)},
    }


def _contents(path: Path) -> Iterator[tuple[Path, Any]]:
    for file in sorted((path / "checkpoints").rglob("*.*")):
        if file.suffix == ".safetensors":
            yield file, file.read_bytes()
        elif file.name == checkpoint.CURSOR:
            yield file, _timeless(read_object(file))


def _timeless(entry: Any) -> Any:
    if not isinstance(entry, dict):
        return entry
    return {key: _timeless(value) for key, value in entry.items() if key not in MEASURED}


def moments(changes: int, every: int) -> Iterator[int]:
    """Every `every`-th change, and one beyond the last."""
    return itertools.chain(range(1, changes + 1, every), [changes + 1])
