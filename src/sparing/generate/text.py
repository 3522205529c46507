"""Text in, text out: only complete characters, and nothing after a stop string."""

import codecs
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sparing.data.vocab import Vocab
from sparing.device import Hardware
from sparing.generate.decode import GenerationConfig, stream_tokens
from sparing.models.api import LanguageModel

Finish = Literal["length", "stop"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """The text generated after a prompt."""

    prompt: bytes
    text: str
    tokens: int
    """Tokens generated, including those of the stop string."""
    elapsed_s: float
    finish: Finish


class Transcript:
    """Decodes bytes to text and releases the text that is final.

    Incomplete characters and a possible beginning of a stop string at the end are held back. The
    text released does not depend on how its bytes were cut into pieces.
    """

    def __init__(self, prompt: bytes, stop: Sequence[str], *, opening: str = "") -> None:
        self.stopped = False
        self._stop = tuple(stop)
        self._held = opening
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        # The first bytes generated may complete a character that the prompt has begun.
        self._decoder.decode(prompt)

    def push(self, piece: bytes, *, final: bool = False) -> str:
        """Add bytes and return the text that is now final; `final` also releases what was held."""
        self._held += self._decoder.decode(piece, final)
        ends = [(at + len(stop), at) for stop in self._stop if (at := self._held.find(stop)) >= 0]
        if ends:
            # The first to be complete counts; of several that end at the same place, the longest.
            self.stopped = True
            return self._release(min(ends)[1])
        return self._release(len(self._held) - (0 if final else self._held_back()))

    def _release(self, count: int) -> str:
        released, self._held = self._held[:count], self._held[count:]
        return released

    def _held_back(self) -> int:
        """Number of characters at the end that may be the beginning of a stop string."""
        longest = max((len(stop) - 1 for stop in self._stop), default=0)
        for count in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-count:]) for stop in self._stop):
                return count
        return 0


class Draft:
    """A completion that is being generated."""

    def __init__(self, prompt: bytes, transcript: Transcript) -> None:
        self.transcript = transcript
        self._prompt, self._pieces, self._tokens = prompt, list[str](), 0
        self._started_at = self._ended_at = time.perf_counter()

    def add(self, piece: bytes) -> None:
        """Add a token, unless a stop string has ended the text."""
        if self.transcript.stopped:
            return
        self._pieces.append(self.transcript.push(piece))
        self._tokens += 1
        self._ended_at = time.perf_counter()

    def completion(self) -> Completion:
        """Finish the text and return it."""
        if not self.transcript.stopped:
            self._pieces.append(self.transcript.push(b"", final=True))
        return Completion(
            prompt=self._prompt,
            text="".join(self._pieces),
            tokens=self._tokens,
            elapsed_s=self._ended_at - self._started_at,
            finish="stop" if self.transcript.stopped else "length",
        )


def stream_text(
    model: LanguageModel,
    vocab: Vocab,
    prompt: bytes,
    config: GenerationConfig,
    hardware: Hardware,
) -> Iterator[str]:
    """Yield the continuation of `prompt` piece by piece, as soon as each piece is final."""
    ids = vocab.encode(prompt)
    transcript = Transcript(prompt, config.stop, opening=_missing_space(vocab, prompt, ids))
    for step in stream_tokens(model, [ids], config, start=vocab.start, hardware=hardware):
        if piece := transcript.push(vocab.token_bytes(int(step[0]))):
            yield piece
        if transcript.stopped:
            return
    if piece := transcript.push(b"", final=True):
        yield piece


def complete(
    model: LanguageModel,
    vocab: Vocab,
    prompts: Sequence[bytes],
    config: GenerationConfig,
    hardware: Hardware,
) -> list[Completion]:
    """Continue every prompt independently of the others (prompt i uses seed + i)."""
    ids = [vocab.encode(prompt) for prompt in prompts]
    drafts = [
        Draft(prompt, Transcript(prompt, config.stop, opening=_missing_space(vocab, prompt, own)))
        for prompt, own in zip(prompts, ids, strict=True)
    ]
    for step in stream_tokens(model, ids, config, start=vocab.start, hardware=hardware):
        for draft, token in zip(drafts, step, strict=True):
            draft.add(vocab.token_bytes(int(token)))
        if all(draft.transcript.stopped for draft in drafts):
            break
    return [draft.completion() for draft in drafts]


def _missing_space(vocab: Vocab, prompt: bytes, ids: np.ndarray) -> str:
    """Return the space that ends the prompt's last token if the prompt itself lacks it."""
    ends_in_space = len(ids) > 0 and vocab.token_bytes(int(ids[-1])).endswith(b" ")
    return " " if ends_in_space and not prompt[-1:].isspace() else ""
