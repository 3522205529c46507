"""A checkpoint is replaced by renames, and a kill between any two of them loses nothing."""

import itertools
import os
import shutil
from pathlib import Path

import pytest
from tests.training.numbered import IDENTITY, number, step_of, weights

from sparing.training import checkpoint, swap


class Killed(BaseException):
    pass


@pytest.mark.parametrize("way", ["save", "update"])
@pytest.mark.parametrize("name", ["last", "best"])
def test_a_kill_at_any_file_operation_leaves_a_complete_checkpoint(
    name: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kill before the n-th change to the disk, for every n, and open the folder again."""
    for moment in itertools.count():
        folder = tmp_path / str(moment)
        checkpoint.save(folder, name, number(1), IDENTITY)
        checkpoint.save(folder, name, number(2), IDENTITY)
        with monkeypatch.context() as patch:
            finished = die_at(moment, patch, folder, name, way)
        kept = step_of(folder, name)
        assert kept in (2, 3)
        if name == "last":
            assert step_of(folder, "previous") in ((1,) if kept == 2 or way == "update" else (1, 2))
        swap.settle(folder)
        assert {path.name for path in folder.iterdir()} <= set(swap.NAMES)
        if name == "last":
            assert step_of(folder, "previous") == (1 if way == "update" else kept - 1)
        checkpoint.save(folder, name, number(4), IDENTITY)
        assert step_of(folder, name) == 4
        assert name == "best" or step_of(folder, "previous") == kept
        if finished:
            break
    assert moment > 5


def die_at(moment: int, patch: pytest.MonkeyPatch, folder: Path, name: str, way: str) -> bool:
    left = itertools.count(moment, -1)

    def mortal(operation):  # type: ignore[no-untyped-def]
        def operate(*arguments, **options):  # type: ignore[no-untyped-def]
            if next(left) <= 0:
                raise Killed
            return operation(*arguments, **options)

        return operate

    patch.setattr(os, "replace", mortal(os.replace))
    patch.setattr(Path, "rename", mortal(Path.rename))
    patch.setattr(Path, "mkdir", mortal(Path.mkdir))
    patch.setattr(shutil, "rmtree", mortal(shutil.rmtree))
    patch.setattr(checkpoint, "save_file", mortal(checkpoint.save_file))
    patch.setattr(os, "link", mortal(os.link))
    try:
        if way == "save":
            checkpoint.save(folder, name, number(3), IDENTITY)
        else:
            checkpoint.update(folder, name, weights(3), IDENTITY)
    except Killed:
        return False
    return True


def test_a_checkpoint_that_is_not_worth_keeping_leaves_the_previous_one(tmp_path: Path) -> None:
    for value in (1, 2):
        checkpoint.save(tmp_path, "last", number(value), IDENTITY)
    checkpoint.save(tmp_path, "last", number(3), IDENTITY, rotate=False)
    assert [step_of(tmp_path, name) for name in ("last", "previous")] == [3, 1]
    assert {path.name for path in tmp_path.iterdir()} == {"last", "previous"}


def test_a_last_that_was_only_moved_away_is_found_and_settled(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, "last", number(1), IDENTITY)
    (tmp_path / "last").rename(tmp_path / "retired-last")
    assert checkpoint.list_names(tmp_path) == ["last"]
    swap.settle(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"last"}
