"""What is printed, and what of it is escaped."""

import io
import json

import pytest

from sparing.terminal import escape, escape_line, print_json, print_line, print_text

WILD = "a\tb\n\x1b[31mred\x07\x00\r\x7f\x9b2J\u202eé€"
ESCAPED = "a\tb\n\\x1b[31mred\\x07\\x00\\x0d\\x7f\\x9b2J\\u202eé€"


class Screen(io.StringIO):
    """A terminal, or a pipe."""

    def __init__(self, *, terminal: bool, encoding: str = "utf-8") -> None:
        super().__init__()
        self._terminal, self._encoding = terminal, encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]  # Settable in the base class.
        return self._encoding

    def isatty(self) -> bool:
        return self._terminal


@pytest.mark.parametrize(("terminal", "shown"), [(True, ESCAPED), (False, WILD)])
def test_text_of_a_model_is_escaped_on_a_terminal_only(
    terminal: bool, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout", screen := Screen(terminal=terminal))
    print_text(WILD)
    assert screen.getvalue() == shown


@pytest.mark.parametrize("terminal", [True, False])
def test_our_own_lines_are_always_escaped(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", screen := Screen(terminal=terminal))
    print_line(WILD, err=True)
    assert screen.getvalue() == f"{ESCAPED}\n"


def test_bytes_of_a_file_name_that_are_not_utf_8_are_escaped() -> None:
    assert escape(b"caf\xe9".decode("utf-8", "surrogateescape")) == r"caf\xe9"
    assert escape("\ud800") == r"\ud800"


def test_a_name_in_a_table_stays_on_one_line() -> None:
    assert escape_line("a\nb\tc\u2028d") == r"a\x0ab\x09c\u2028d"


def test_a_terminal_that_cannot_show_a_character_gets_its_escape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdout", screen := Screen(terminal=False, encoding="ascii"))
    print_line("± 3")
    assert screen.getvalue() == "\\xb1 3\n"


def test_json_has_no_control_characters_and_stays_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"name": WILD})
    line = capsys.readouterr().out
    assert json.loads(line) == {"name": WILD}
    assert line.rstrip("\n").isprintable()
