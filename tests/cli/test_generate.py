"""`sparing generate` at a terminal and in a pipe."""

import re
from pathlib import Path

import pytest
from tests.cli.conftest import Sparing
from tests.cli.terminal import Terminal

WORDS = ("--prompt", "line 7", "--length", 20)
SPEED = re.compile(r"^\(20 bytes in \d+\.\d s, [\d,]+ bytes/s\)$", re.MULTILINE)


def shown_by(*words: object, **environment: str) -> str:
    with Terminal("generate", *words, **environment) as terminal:
        assert terminal.wait() == 0, terminal.text
    return terminal.text.replace("\r\n", "\n")


def test_a_terminal_shows_what_was_the_prompt_and_how_fast_it_was(
    run: Path, sparing: Sparing
) -> None:
    piped = sparing("generate", run, *WORDS)
    assert (piped.status, piped.err) == (0, "")
    shown = shown_by(run, *WORDS)
    assert shown.startswith("\x1b[1mline 7\x1b[0m")
    assert SPEED.search(shown.splitlines()[-1])


def test_a_terminal_without_styles_shows_the_prompt_between_lines(run: Path) -> None:
    shown = shown_by(run, *WORDS, NO_COLOR="1")
    assert shown.startswith("--- prompt ---\nline 7\n--- generated ---\n")
    assert "\x1b[" not in shown
    assert SPEED.search(shown)


def test_several_prompts_are_marked_too(run: Path) -> None:
    shown = shown_by(run, "--prompt", "line 7", "--prompt", "the", "--length", 10)
    assert "\x1b[1mline 7\x1b[0m" in shown
    assert "\x1b[1mthe\x1b[0m" in shown
    assert SPEED.search(shown.splitlines()[-1])


@pytest.mark.parametrize("prompts", [["a"], ["a", "b"]])
def test_json_is_one_document_whatever_the_number_of_prompts(
    prompts: list[str], run: Path, sparing: Sparing
) -> None:
    words = [word for prompt in prompts for word in ("--prompt", prompt)]
    found = sparing("generate", run, *words, "--length", 4, "--json").json()["completions"]
    assert [each["prompt"] for each in found] == prompts
