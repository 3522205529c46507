"""A run's way back in."""

from pathlib import Path

import pytest
from tests.runs.conftest import Killed, killed, resume

from sparing.runs.folder import RunFolder


@pytest.mark.parametrize("moment", ["train.fit", "resume.journal.rewind"])
@pytest.mark.parametrize("more", [(), ("--set", "optim.lr=1e-4")])
def test_what_previous_was_chosen_over_does_not_come_back_after_a_kill(
    moment: str, more: tuple[str, ...], killed_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(f"sparing.runs.{moment}", killed)
        with pytest.raises(Killed):
            resume(killed_run, "--checkpoint", "previous", *more)
    assert RunFolder(killed_run).step("last") == 4
    # The same command again means the same weights.
    assert RunFolder(killed_run).step("previous") == 4
    assert resume(killed_run) == 0
