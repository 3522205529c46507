"""The commit that results belong to."""

import subprocess
import sys
from pathlib import Path

import pytest

from sparing import device
from sparing.runs import provenance

MAIN = provenance.PACKAGE / "__main__.py"


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    done = subprocess.run(["git", *who, *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the code in a repository that is not ours."""
    monkeypatch.delenv("SPARING_COMMIT", raising=False)
    copy = tmp_path / "lib" / "provenance.py"
    copy.parent.mkdir()
    copy.touch()
    (tmp_path / ".gitignore").write_text("lib\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".gitignore")
    git(tmp_path, "commit", "-q", "-m", "theirs")
    monkeypatch.setattr(provenance, "__file__", str(copy))
    return tmp_path


def test_the_commit_of_a_project_it_is_installed_in_is_not_ours(theirs: Path) -> None:
    assert provenance.current_commit() is None


def test_code_under_version_control_reports_its_commit_and_changes(theirs: Path) -> None:
    git(theirs, "add", "-f", "lib/provenance.py")
    git(theirs, "commit", "-q", "-m", "ours")
    head = git(theirs, "rev-parse", "--short=12", "HEAD")
    # A run folder or a note beside the code is no change of it.
    (theirs / "notes.txt").touch()
    assert provenance.current_commit() == head
    (theirs / "lib" / "provenance.py").write_text("# changed\n")
    assert provenance.current_commit() == f"{head}+changes"


def test_the_environment_variable_comes_first(
    theirs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARING_COMMIT", "c0ffee")
    assert provenance.current_commit() == "c0ffee"


@pytest.mark.parametrize(
    ("argv", "orig_argv", "recorded"),
    [
        (["/bin/sparing", "train"], ["python", "/bin/sparing", "train"], ["sparing", "train"]),
        ([f"{MAIN}", "train"], ["python", "-m", "sparing", "train"], ["sparing", "train"]),
        (["own.py", "3"], ["/bin/python3", "own.py", "3"], ["python", "own.py", "3"]),
        (["-c"], ["python", "-c", "import sparing"], ["python", "-c", "import sparing"]),
        ([""], ["python"], ["python"]),
    ],
)
def test_the_command_is_that_of_the_program_that_trained(
    argv: list[str], orig_argv: list[str], recorded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(sys, "orig_argv", orig_argv)
    assert provenance.provenance(device.pick("cpu"), seed=1)["command"] == recorded


def test_the_source_is_known_without_a_repository(tmp_path: Path) -> None:
    def written(folder: str, **files: str) -> str:
        for name, text in files.items():
            path = tmp_path / folder / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.with_suffix(".py").write_text(text)
        return provenance.source_sha256(tmp_path / folder)

    first = written("one", a="x = 1\n", sub__b="y = 2\n")
    (tmp_path / "one" / "weights.json").write_text("{}")
    assert written("copy", sub__b="y = 2\n", a="x = 1\n") == first
    assert len(first) == 64
    others = [
        written("content", a="x = 2\n", sub__b="y = 2\n"),
        written("name", a="x = 1\n", sub__c="y = 2\n"),
        written("place", a="x = 1\n", b="y = 2\n"),
        written("split", a="x = 1\ny", sub__b=" = 2\n"),
        written("more", a="x = 1\n", sub__b="y = 2\n", sub__c=""),
    ]
    assert len({first, *others}) == 6


def test_a_run_records_the_source_of_the_package_that_trains_it() -> None:
    found = provenance.provenance(device.pick("cpu"), 1)["source_sha256"]
    assert found == provenance.source_sha256(Path(provenance.__file__).parents[1])
