"""What the verbs have in common."""

import io

import pytest

from sparing.cli.options import say

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
    say(WILD)
    return screen.getvalue()


def test_a_terminal_is_spared_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = said(monkeypatch, terminal=True)
    assert shown == "a\tb\n\\x1b[31mred\\x07\\x00\\x0d\\x7f\\x9b2Jé€"


def test_a_pipe_gets_the_text_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(monkeypatch, terminal=False) == WILD
