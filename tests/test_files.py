"""Atomic writes, errors that name the file, and locks."""

import errno
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sparing.errors import UserError
from sparing.files import (
    atomic_folder,
    atomic_write,
    check_writable,
    claim_folder,
    lock_folder,
    read_json,
    read_object,
    remove_leftovers,
    write_bytes,
    write_json,
)


def fail_half_way(path: Path) -> None:
    with atomic_write(path) as scratch:
        scratch.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_failed_write_leaves_the_old_file_and_names_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(OSError, match="No space left") as failure:
        fail_half_way(path)
    assert failure.value.filename == str(path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_where_nothing_can_be_removed_either_the_error_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, **options: bool) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    # As on a file system that became read-only; nobody but root can mount one for a test.
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(OSError, match="No space left") as failure:
        fail_half_way(tmp_path / "file")
    assert failure.value.filename == str(tmp_path / "file")


def test_only_leftovers_of_dead_processes_of_this_machine_are_removed(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    host = socket.gethostname()
    kept = {
        f".file.{host}.{os.getppid()}.part", f".file.elsewhere.{ended.pid}.part", "file.part",
        f"file.{host}.{ended.pid}.part", f".file.{host}.part", ".lock",
    }  # fmt: skip
    for name in (*kept, f".file.json.{host}.{ended.pid}.part"):
        (tmp_path / name).write_text("half")
    (tmp_path / f".folder.{host}.{ended.pid}").mkdir()
    (tmp_path / f".folder.{host}.{ended.pid}" / "file").write_text("half")
    remove_leftovers(tmp_path)
    assert set(os.listdir(tmp_path)) == kept


@pytest.mark.parametrize("name", ["f" * 255, "f" * 245, "ä" * 127], ids=["255", "245", "umlauts"])
def test_a_file_may_have_the_longest_name_there_is(tmp_path: Path, name: str) -> None:
    with atomic_write(tmp_path / name) as scratch:
        scratch.write_text("whole")
        assert len(os.fsencode(scratch.name)) <= 255
        assert os.listdir(tmp_path) == [scratch.name]
    assert os.listdir(tmp_path) == [name]
    with subprocess.Popen(["true"]) as ended:
        pass
    left = scratch.with_name(scratch.name.replace(str(os.getpid()), str(ended.pid)))
    for own in (name, None):
        left.write_text("half")
        remove_leftovers(tmp_path, "another")
        assert left.exists()
        remove_leftovers(tmp_path, own)
        assert os.listdir(tmp_path) == [name]


def test_whether_a_file_can_be_written_is_known_before_and_nothing_is_left(tmp_path: Path) -> None:
    check_writable(tmp_path / "new" / "folder" / "file")
    (tmp_path / "text").write_text("text")
    for path, kind in (
        (tmp_path / "text" / "file", NotADirectoryError),
        (Path("/proc/self/file"), FileNotFoundError),
    ):
        with pytest.raises(kind) as caught:
            check_writable(path)
        assert caught.value.filename in (str(path), str(path.parent))
    check_writable(tmp_path / "text")
    assert (tmp_path / "text").read_text() == "text"
    assert os.listdir(tmp_path) == ["text"]


def test_all_bytes_of_a_memoryview_are_written(tmp_path: Path) -> None:
    write_bytes(tmp_path / "file", memoryview(b"abcdef").cast("H"))
    assert (tmp_path / "file").read_bytes() == b"abcdef"


def test_an_incomplete_write_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    program = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from sparing.files import write_bytes\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try: write_bytes(Path(sys.argv[1]), bytes(4100))\n"
        "except OSError as problem: print(problem.errno, problem.filename)\n"
    )
    path = tmp_path / "file"
    said = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1] / "src")},
    )  # fmt: skip
    assert said.stdout == f"{errno.EFBIG} {path}\n"


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"[" * 200_000, b"9" * 5_000, b'{"a": nothing}']
)
def test_damaged_json_is_one_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"file\.json cannot be read") as refusal:
        read_json(path)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 300


@pytest.mark.parametrize("data", [[], [1], "text", 3, None, True])
def test_json_that_is_no_object_is_refused(data: object, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text(json.dumps(data))
    with pytest.raises(UserError, match=r"file\.json is damaged"):
        read_object(path)
    write_json(path, {"a": 1})
    assert read_object(path) == {"a": 1}


def test_a_locked_folder_is_refused(tmp_path: Path) -> None:
    with lock_folder(tmp_path), pytest.raises(UserError, match="in use"), lock_folder(tmp_path):
        pass


def test_a_lock_is_waited_for(tmp_path: Path) -> None:
    order: list[str] = []

    def second() -> None:
        with lock_folder(tmp_path, wait_s=math.inf):
            order.append("second")

    thread = threading.Thread(target=second)
    with lock_folder(tmp_path):
        thread.start()
        time.sleep(0.1)
        order.append("first")
    thread.join(timeout=60)
    assert order == ["first", "second"]


def test_a_lock_is_waited_for_up_to_a_limit(tmp_path: Path) -> None:
    held, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with lock_folder(tmp_path):
            held.set()
            let_go.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    with pytest.raises(UserError, match="in use"), lock_folder(tmp_path, wait_s=0.1):
        pass
    threading.Timer(0.1, let_go.set).start()
    with lock_folder(tmp_path, wait_s=60):
        pass
    thread.join()


@pytest.mark.parametrize(("before", "written", "left"), [
    ([], [], None),
    ([], ["config.json"], [".lock", "config.json"]),
    (["notes"], [], [".lock", "notes"]),
])  # fmt: skip
def test_a_new_folder_is_removed_if_nothing_was_written(
    before: list[str], written: list[str], left: list[str] | None, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    for name in before:
        folder.mkdir()
        (folder / name).touch()

    def fail() -> None:
        with claim_folder(folder):
            for name in written:
                (folder / name).touch()
            raise UserError("no")

    with pytest.raises(UserError, match="no"):
        fail()
    assert (sorted(os.listdir(folder)) if folder.exists() else None) == left


def test_a_waiting_process_locks_a_folder_that_was_removed_meanwhile(tmp_path: Path) -> None:
    folder, held, waiting = tmp_path / "run", threading.Event(), threading.Event()

    def fail() -> None:
        with claim_folder(folder):
            held.set()
            waiting.wait(60)
            time.sleep(0.2)
            raise UserError("no")

    with ThreadPoolExecutor() as pool:
        failing = pool.submit(fail)
        held.wait(60)
        waiting.set()
        with claim_folder(folder, wait_s=60):
            assert (folder / ".lock").exists()
            with pytest.raises(UserError, match="in use"), claim_folder(folder):
                pass
        assert isinstance(failing.exception(timeout=60), UserError)


def test_an_error_names_the_target_file(tmp_path: Path) -> None:
    wanted = tmp_path / "picture.png"
    with pytest.raises(FileNotFoundError) as caught, atomic_write(wanted) as scratch:
        (scratch / "no folder").write_text("")
    assert caught.value.filename == str(scratch / "no folder")
    with pytest.raises(FileNotFoundError) as caught, atomic_write(wanted) as scratch:
        scratch.open()
    assert caught.value.filename == str(wanted)


def test_a_folder_appears_only_when_it_is_complete(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "new" / "folder") as scratch:
        (scratch / "file").write_text("whole")
        assert not (tmp_path / "new" / "folder").exists()
    assert (tmp_path / "new" / "folder" / "file").read_text() == "whole"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["folder"]


def half_a_folder(folder: Path) -> None:
    with atomic_folder(folder) as scratch:
        (scratch / "file").write_text("half")
        raise RuntimeError


def test_a_failure_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        half_a_folder(tmp_path / "new" / "folder")
    assert list((tmp_path / "new").iterdir()) == []


def test_the_first_folder_to_be_finished_is_kept(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "folder") as scratch:
        (scratch / "file").write_text("late")
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "file").write_text("early")
    assert (tmp_path / "folder" / "file").read_text() == "early"


def new_folder_in_place_of(folder: Path, problem: BaseException | None = None) -> None:
    with atomic_folder(folder, replace=True) as scratch:
        (scratch / "file").write_text("new")
        if problem is not None:
            raise problem


@pytest.mark.parametrize("problem", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_an_old_folder_is_kept_until_the_new_one_is_complete(
    tmp_path: Path, problem: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    new_folder_in_place_of(folder)
    (folder / "file").write_text("old")
    with pytest.raises(type(problem)):
        new_folder_in_place_of(folder, problem)
    monkeypatch.setattr(os, "rename", failing_at(folder, problem))
    with pytest.raises(type(problem)):
        new_folder_in_place_of(folder)
    assert (folder / "file").read_text() == "old"
    new_folder_in_place_of(folder)
    assert (folder / "file").read_text() == "new"
    assert os.listdir(tmp_path) == ["folder"]


def failing_at(folder: Path, problem: BaseException) -> Callable[[Path, Path], None]:
    """`os.rename` that fails the first time that it would rename something to `folder`."""
    rename, problems = os.rename, [problem]

    def rename_or_fail(source: Path, target: Path) -> None:
        if target == folder and problems:
            raise problems.pop()
        rename(source, target)

    return rename_or_fail


def test_the_temporary_folder_of_a_killed_process_is_removed(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from sparing.files import atomic_folder\n"
        "with atomic_folder(Path(sys.argv[1])) as scratch:\n"
        "    (scratch / 'file').write_text('half'); time.sleep(120)\n"
    )
    source = str(Path(__file__).parents[1] / "src")
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "new" / "folder")],
        env=os.environ | {"PYTHONPATH": source},
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("new/.folder.*/file")) and time.monotonic() < deadline:
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert not (tmp_path / "new" / "folder").exists()
    with atomic_folder(tmp_path / "new" / "folder") as scratch:
        (scratch / "file").write_text("whole")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["folder"]
