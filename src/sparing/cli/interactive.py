"""`sparing generate --interactive`: a user and a model take turns writing a text."""

import codecs
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain

from sparing.data.text import encode_text
from sparing.errors import UserError
from sparing.generate.text import Continuation, TextState
from sparing.lm import LM, GenerationOptions, generation_config
from sparing.signals import outlive_interrupts
from sparing.terminal import print_line, print_text

WELCOME = """\
Type the beginning of a text and press Enter. Further lines are appended to it.
An empty line lets the model continue, /new starts over, Ctrl-C stops a
completion, and Ctrl-D quits."""
NEW = b"/new"
MAX_BYTES = 1 << 20
"""Longest line that is read."""


def converse(lm: LM, options: GenerationOptions, *, first: bytes | None = None) -> None:
    """Continue line after line of standard input, each after all the text before it."""
    given = [] if first is None else [first]
    if not sys.stdin.isatty():
        read = lm.state("")
        for turn, line in enumerate(chain(given, _piped_lines())):
            read = _take_turn(lm, read, line, _reseed(options, turn))
        return
    print_line(WELCOME, err=True)
    with outlive_interrupts():
        _converse_with_user(lm, options, given)


def print_completion(
    lm: LM, read: TextState, options: GenerationOptions, *, stoppable: bool = False
) -> Continuation:
    """Print what the model writes after the text `read` as it comes, and return it.

    Where it is `stoppable`, Ctrl-C ends the text.
    """
    config = generation_config(**options)
    written = Continuation(lm.model, lm.vocab, read, config, lm.hardware)
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    # The first bytes may complete a character that the text before them has begun.
    decoder.decode(read.text)
    try:
        for piece in written:
            print_text(decoder.decode(piece))
    except KeyboardInterrupt:
        if not stoppable:
            raise
    print_text(decoder.decode(b"", final=True))
    return written


def _converse_with_user(lm: LM, options: GenerationOptions, given: list[bytes]) -> None:
    read, turn = lm.state(""), 0
    while (line := given.pop() if given else _ask()) is not None:
        try:
            read = _take_turn(lm, read, line, _reseed(options, turn))
        except UserError as problem:
            print_line(f"sparing: {problem}", err=True)
        except KeyboardInterrupt:
            # While the line was being read: as if it had not been given.
            print_line(err=True)
        turn += 1


def _take_turn(lm: LM, read: TextState, line: bytes, options: GenerationOptions) -> TextState:
    """Read a line, print it with what follows, and return the state after both."""
    if line == NEW:
        return lm.state("")
    if line:
        read = lm.state(_line_break(lm, read) + line, after=read)
        print_text(line.decode("utf-8", errors="replace"), strong=True)
    written = print_completion(lm, read, options, stoppable=sys.stdin.isatty())
    print_text("\n")
    return written.state()


def _reseed(options: GenerationOptions, turn: int) -> GenerationOptions:
    """Let every turn have random numbers of its own."""
    return {**options, "seed": options["seed"] + turn}


def _line_break(lm: LM, read: TextState) -> bytes:
    """What separates a line from the text before it, in a vocabulary without newlines too."""
    if not read.text or read.text.endswith(b"\n"):
        return b""
    for separator in (b"\n", b" "):
        with suppress(UserError):
            if len(lm.vocab.encode(separator)):
                return separator
    return b""


def _piped_lines() -> Iterator[bytes]:
    while line := sys.stdin.buffer.readline(MAX_BYTES):
        if len(line) == MAX_BYTES:
            raise UserError(f"a line holds {MAX_BYTES:,} bytes or more; use --prompt-file")
        yield line.rstrip(b"\r\n")


def _ask() -> bytes | None:
    """Ask for a line; None at Ctrl-D. Ctrl-C drops what was typed."""
    # Gives `input` its line editing and history; not every Python has it.
    with suppress(ImportError):
        import readline  # noqa: F401  # the import is all it takes
    while True:
        try:
            return encode_text(input("> "))
        except EOFError:
            print_line(err=True)
            return None
        except KeyboardInterrupt:
            print_line("\n(Ctrl-D quits)", err=True)
        except UnicodeDecodeError:
            print_line("sparing: that line was not UTF-8; try again", err=True)
