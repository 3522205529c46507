"""Options of `sparing train`."""

import pytest

from sparing.cli.main import main


@pytest.mark.parametrize(
    ("option", "said"),
    [(["--checkpoint", "best"], "`checkpoint`"), (["--cut-journal"], "cutting the journal")],
)
def test_options_of_a_resume_need_one(
    option: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "quickstart", *option]) == 2
    assert f"{said} needs `resume`" in capsys.readouterr().err
