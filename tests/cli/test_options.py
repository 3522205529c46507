"""Options and output shared by the commands."""

import pytest

from sparing.cli.options import print_report


def test_a_report_wraps_at_a_hundred_columns_except_for_commands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["sparing", "train", "quickstart", "--data", "two words", *["--set", "a=1"] * 12]
    parts = {f"part {at}": {"number": 1_000_000 + at, "of": "itit"} for at in range(2)}
    print_report({"a": 1, "long": {"command": command, **parts, "word": "x" * 95}}, as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        "a     1",
        f"long  command sparing train quickstart --data 'two words'{' --set a=1' * 12}",
        "      part 0 number 1,000,000, of itit",
        "      part 1 number 1,000,001, of itit",
        f"      word {'x' * 95}",
    ]
    print_report({"long": {f"name{at}": "value" for at in range(10)}}, as_json=False)
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith(", name6 value,")
    assert second == "      name7 value, name8 value, name9 value"


def test_a_report_leaves_out_what_is_unset_and_does_not_group_the_digits_of_a_seed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_report({"seed": 1112, "launch": None, "of": {"seed": 2223, "step": 1112}}, as_json=False)
    assert capsys.readouterr().out == "seed  1112\nof    seed 2223, step 1,112\n"


def test_a_report_fits_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    print_report({"about": "word " * 30}, as_json=False)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 40
