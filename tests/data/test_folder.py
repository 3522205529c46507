import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sparing.data.folder import building


def test_a_folder_appears_when_it_is_complete(tmp_path: Path) -> None:
    with building(tmp_path / "new" / "folder") as scratch:
        (scratch / "file").write_text("whole")
        assert not (tmp_path / "new" / "folder").exists()
    assert (tmp_path / "new" / "folder" / "file").read_text() == "whole"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["folder"]


def half_a_folder(folder: Path) -> None:
    with building(folder) as scratch:
        (scratch / "file").write_text("half")
        raise RuntimeError


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        half_a_folder(tmp_path / "new" / "folder")
    assert list((tmp_path / "new").iterdir()) == []


def test_the_first_to_finish_wins(tmp_path: Path) -> None:
    with building(tmp_path / "folder") as scratch:
        (scratch / "file").write_text("late")
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "file").write_text("early")
    assert (tmp_path / "folder" / "file").read_text() == "early"


def test_what_a_killed_process_left_is_swept_away(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from sparing.data.folder import building\n"
        "with building(Path(sys.argv[1])) as scratch:\n"
        "    (scratch / 'file').write_text('half'); time.sleep(60)\n"
    )
    source = str(Path(__file__).parents[2] / "src")
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "new" / "folder")],
        env=os.environ | {"PYTHONPATH": source},
    )
    deadline = time.monotonic() + 30
    while not list(tmp_path.glob("new/.folder.*/file")) and time.monotonic() < deadline:
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert not (tmp_path / "new" / "folder").exists()
    with building(tmp_path / "new" / "folder") as scratch:
        (scratch / "file").write_text("whole")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["folder"]
