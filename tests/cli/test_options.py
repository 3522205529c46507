"""Options and output shared by the commands."""

import io

import pytest

from sparing.cli.options import print_report, print_text

WILD = "a\tb\n\x1b[31mred\x07\x00\r\x7f\x9b2Jé€"


class Screen(io.StringIO):
    """A terminal, or a pipe."""

    encoding = "utf-8"

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def said(monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> str:
    screen = Screen(terminal)
    monkeypatch.setattr("sys.stdout", screen)
    print_text(WILD)
    return screen.getvalue()


def test_control_characters_are_escaped_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = said(monkeypatch, terminal=True)
    assert shown == "a\tb\n\\x1b[31mred\\x07\\x00\\x0d\\x7f\\x9b2Jé€"


def test_a_pipe_gets_the_text_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(monkeypatch, terminal=False) == WILD


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
