"""The new folder of an export."""

from pathlib import Path

import pytest

from sparing.errors import UserError
from sparing.export.trained import new_folder


def fill(out: Path, *, other: bool = False, fails: bool = False) -> None:
    with new_folder(out) as scratch:
        (scratch / "file").write_text("ours")
        assert not out.exists()
        if other:
            out.mkdir()
            (out / "file").write_text("theirs")
        if fails:
            raise UserError("failed")


def test_a_folder_appears_only_when_it_is_complete(tmp_path: Path) -> None:
    out = tmp_path / "some" / "out"
    with pytest.raises(UserError, match="failed"):
        fill(out, fails=True)
    assert not list(out.parent.iterdir())
    fill(out)
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    assert (out / "file").read_text() == "ours"


def test_a_folder_that_another_process_made_meanwhile_is_kept_and_reported(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(UserError, match="another process"):
        fill(out, other=True)
    assert (out / "file").read_text() == "theirs"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
