"""`sparing generate --interactive`, with lines from a pipe and from somebody at a terminal."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.cli.conftest import Sparing, settings
from tests.cli.terminal import Terminal
from torch import Tensor

import sparing as package
from sparing.cli import interactive
from sparing.data.text import encode_text
from sparing.generate.decode import GenerationConfig, stream_tokens
from sparing.generate.sampling import SamplingConfig, sample

GREEDY = ("--temperature", 0, "--length", 6)


def pipe(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(encode_text(text))))


def test_every_line_goes_on_from_all_the_text_before_it(
    run: Path, sparing: Sparing, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe("line 7\n\nthe quick", monkeypatch)
    said = sparing("generate", run, "--interactive", *GREEDY)
    assert (said.status, said.err) == (0, "")
    lm = package.load(run)
    first = lm.generate(b"line 7", temperature=0, length=6)
    more = lm.generate(b"line 7" + first, temperature=0, length=6)
    last = lm.generate(b"line 7" + first + more + b"\nthe quick", temperature=0, length=6)
    expected = b"line 7" + first + b"\n" + more + b"\nthe quick" + last + b"\n"
    assert said.out == expected.decode(errors="replace")


def test_a_new_text_forgets_the_one_before(
    run: Path, sparing: Sparing, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe("zzz\n/new\nline 7\n", monkeypatch)
    _, again = sparing("generate", run, "-i", *GREEDY).out.splitlines()
    assert again == sparing("generate", run, "--prompt", "line 7", *GREEDY).out.rstrip("\n")


def test_turns_differ_and_the_same_seed_repeats_them(
    run: Path, sparing: Sparing, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = []
    for _ in range(2):
        pipe("a\n/new\na\n", monkeypatch)
        outputs.append(sparing("generate", run, "-i", "--length", 30, "--seed", 3).out)
    assert outputs[0] == outputs[1]
    one, other = package.load(run).generate("a", length=30, seed=3), outputs[0]
    assert other.startswith(f"a{one}\na")
    assert other != f"a{one}\n" * 2


def test_the_model_goes_on_from_the_very_tokens_that_it_has_written(
    sparing: Sparing, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sentencepiece")
    run, pieces = tmp_path / "pieces", ("data.vocab=pieces", "data.vocab_size=340")
    words = ("--data", corpus, "--out", run, *settings(*pieces), "--quiet")
    said = sparing("train", "quickstart", *words)
    assert said.status == 0, said.err
    lm = package.load(run)
    token_bytes = [lm.vocab.token_bytes(id) for id in range(lm.vocab.size)]
    # No text, and then a word in other pieces than those that its letters are encoded to.
    written = [token_bytes.index(each) for each in (b"\xb8", b"l", b"i", b"n", b"e", b" ")]
    assert len(lm.vocab.encode(b"line ")) < 5
    script = list(written)

    def chosen(logits_BV: Tensor, *given: Any) -> Tensor:
        return torch.tensor([script.pop(0)]) if script else sample(logits_BV, *given)

    monkeypatch.setattr("sparing.generate.decode.sample", chosen)
    pipe("line 7\nthe", monkeypatch)
    said = sparing("generate", run, "--interactive", *GREEDY)
    assert (said.status, said.err) == (0, "")
    read = np.concatenate([lm.vocab.encode(b"line 7"), written, lm.vocab.encode(b"\nthe")])
    config = GenerationConfig(length=6, sampling=SamplingConfig(temperature=0))
    more = stream_tokens(lm.model, [read], config, start=lm.vocab.start, hardware=lm.hardware)
    last = b"".join(token_bytes[ids[0]] for ids in more).decode(errors="replace")
    assert said.out == f"line 7\ufffdline \nthe{last}\n"


def test_a_given_prompt_comes_first(
    run: Path, sparing: Sparing, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe("", monkeypatch)
    words = ("generate", run, "--prompt", "line 7", *GREEDY)
    assert sparing(*words, "-i").out == sparing(*words).out


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--json"], "leave --json out"),
        (["--prompt", "a", "--prompt", "b"], "one prompt, not from 2"),
        (["--prompt-file", "-"], "reads standard input itself"),
    ],
)
def test_what_makes_no_sense_is_refused(words: list[str], reason: str, sparing: Sparing) -> None:
    said = sparing("generate", "--interactive", *words)
    assert (said.status, said.out, said.err.count("\n")) == (2, "", 1)
    assert reason in said.err


def test_a_line_that_is_too_long_is_refused(
    run: Path, sparing: Sparing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparing.cli.interactive.MAX_BYTES", 99)
    pipe("a" * 99, monkeypatch)
    said = sparing("generate", run, "-i")
    assert (said.status, said.err.count("\n")) == (2, 1)
    assert "a line holds" in said.err


def test_somebody_at_a_terminal_stops_completions_and_leaves(run: Path) -> None:
    with Terminal("generate", run, "--interactive", "--length", 10**7) as terminal:
        for line in ("line 7", "the"):
            terminal.read_until("> ")
            terminal.write(f"{line}\n")
            # Its prompt is set apart, and the model has begun.
            terminal.read_until(f"\x1b[1m{line}\x1b[0m")
            terminal.read_some()
            terminal.write("\x03")
        terminal.read_until("> ")
        assert terminal.leave("\x04") == 0


def test_ctrl_c_at_the_prompt_drops_what_was_typed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed: list[str | type[BaseException]] = [KeyboardInterrupt, "again", EOFError]

    def ask(prompt: str) -> str:
        match typed.pop(0):
            case str(line):
                return line
            case problem:
                raise problem

    monkeypatch.setattr("builtins.input", ask)
    assert interactive._ask() == b"again"
    assert "Ctrl-D quits" in capsys.readouterr().err
    assert interactive._ask() is None
