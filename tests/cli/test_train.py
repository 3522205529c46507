"""Options of `sparing train`."""

import pytest

from sparing.cli.main import main


@pytest.mark.parametrize("option", [["--checkpoint", "best"], ["--cut-journal"]])
def test_options_of_a_resume_need_one(
    option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "quickstart", *option]) == 2
    assert f"{option[0]} needs --resume" in capsys.readouterr().err
