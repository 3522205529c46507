"""Text in, text out: only complete characters, and nothing after a stop string."""

import codecs
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparing.data.vocab import Vocab
from sparing.device import Hardware
from sparing.documents import shown
from sparing.errors import UserError
from sparing.generate.decode import GenerationConfig, Group, decode_groups, prefill, stream_tokens
from sparing.models.api import LanguageModel, State, eval_mode

Finish = Literal["length", "stop"]
BYTES = "latin-1"
"""The encoding in which every byte is a character, so that bytes pass unchanged."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """The text generated after a prompt."""

    prompt: bytes
    text: str
    tokens: int
    """Tokens generated, including those of the stop string."""
    elapsed_s: float
    finish: Finish


@dataclass(frozen=True, slots=True)
class TextState:
    """What a model carries after reading a text. It never changes: continue it as often as wanted.

    Axes: 1 lane, V vocabulary.
    """

    text: bytes
    """Everything read so far."""
    last_token: bytes
    """The last token of it; words may end in a space that the text itself lacks."""
    logits_1V: Tensor
    """Logits of the next token."""
    state: State
    model: LanguageModel
    """The model that read it, the only one that can go on from here."""

    def __repr__(self) -> str:
        return f"TextState(text={shown(self.text)}, last_token={self.last_token!r})"


class Transcript:
    """Decodes bytes to text and releases the text that is final.

    Incomplete characters and a possible beginning of a stop string at the end are held back. The
    text released does not depend on how its bytes were cut into pieces.
    """

    def __init__(
        self, prompt: bytes, stop: Sequence[str], *, opening: str = "", encoding: str = "utf-8"
    ) -> None:
        self.stopped = False
        self._stop = tuple(stop)
        self._held = opening
        self._decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
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


def check_after(after: TextState | None, model: LanguageModel) -> None:
    """Refuse to go on after anything but a text that this very model has read."""
    if after is None:
        return
    if not isinstance(after, TextState):
        raise TypeError(f"`after` is what `state` returned, not {type(after).__name__}")
    if after.model is not model:
        raise UserError("`after` was read by another model; read its text again with this one")


def read_text(  # noqa: PLR0913  two are keyword-only
    model: LanguageModel,
    vocab: Vocab,
    text: bytes,
    hardware: Hardware,
    *,
    after: TextState | None = None,
    chunk: int = GenerationConfig().chunk,
) -> TextState:
    """Read `text`, from its beginning or after what was read before."""
    check_after(after, model)
    ids = vocab.encode(text).astype(np.int64)
    return _read_ids(model, vocab, ids, text, hardware, after, chunk)


def _read_ids(  # noqa: PLR0913  as `read_text`
    model: LanguageModel,
    vocab: Vocab,
    ids: npt.NDArray[np.int64],
    text: bytes,
    hardware: Hardware,
    after: TextState | None,
    chunk: int,
) -> TextState:
    if after is not None and len(ids) == 0:
        return replace(after, text=after.text + text)
    with eval_mode(model, hardware):
        state = model.initial_state(1, inference=True) if after is None else after.state
        ids = np.concatenate([[vocab.start], ids]) if after is None else ids
        tokens_1T = torch.from_numpy(ids).to(model.device)[None]
        logits_1V, state = prefill(model, tokens_1T, state, chunk)
    last = vocab.token_bytes(int(ids[-1])) if text else b""
    return TextState((after.text if after else b"") + text, last, logits_1V, state, model)


def stream_text(  # noqa: PLR0913  two are keyword-only
    model: LanguageModel,
    vocab: Vocab,
    read: TextState,
    config: GenerationConfig,
    hardware: Hardware,
    *,
    encoding: str = "utf-8",
    chosen: list[int] | None = None,
) -> Iterator[str]:
    """Yield what follows the text `read` piece by piece, as soon as each piece is final.

    The ids of the tokens are appended to `chosen`.
    """
    opening = missing_space(read.text, read.last_token)
    transcript = Transcript(read.text, config.stop, opening=opening, encoding=encoding)
    group = Group([0], read.logits_1V, read.state)
    for step in decode_groups(model, [group], config, hardware):
        if chosen is not None:
            chosen.append(int(step[0]))
        if piece := transcript.push(vocab.token_bytes(int(step[0]))):
            yield piece
        if transcript.stopped:
            return
    if piece := transcript.push(b"", final=True):
        yield piece


class Continuation:
    """The bytes that a model writes after the text `read`, to be iterated over once.

    `state` goes on from the tokens that were chosen: encoded again, their text may be cut into
    others, or be no text at all.
    """

    def __init__(
        self,
        model: LanguageModel,
        vocab: Vocab,
        read: TextState,
        config: GenerationConfig,
        hardware: Hardware,
    ) -> None:
        self._model, self._vocab, self._hardware = model, vocab, hardware
        self._read, self._config = read, config
        self._chosen, self._text = list[int](), bytearray()

    @property
    def text(self) -> bytes:
        """What has come out so far."""
        return bytes(self._text)

    def __iter__(self) -> Iterator[bytes]:
        pieces = stream_text(
            self._model,
            self._vocab,
            self._read,
            for_bytes(self._config),
            self._hardware,
            encoding=BYTES,
            chosen=self._chosen,
        )
        for piece in pieces:
            self._text += piece.encode(BYTES)
            yield piece.encode(BYTES)

    def state(self) -> TextState:
        """What the model carries after the text that has come out so far."""
        text, model, vocab = self.text, self._model, self._vocab
        count, end = 0, len(missing_space(self._read.text, self._read.last_token))
        for id in self._chosen:
            if (after := end + len(vocab.token_bytes(id))) > len(text):
                break
            count, end = count + 1, after
        # Of the token in which a stop string begins.
        rest = vocab.encode(text[end:])
        ids = np.concatenate([self._chosen[:count], rest]).astype(np.int64)
        return _read_ids(model, vocab, ids, text, self._hardware, self._read, self._config.chunk)


def complete(  # noqa: PLR0913  one is keyword-only
    model: LanguageModel,
    vocab: Vocab,
    prompts: Sequence[bytes],
    config: GenerationConfig,
    hardware: Hardware,
    *,
    encoding: str = "utf-8",
) -> list[Completion]:
    """Continue every prompt independently of the others (prompt i uses seed + i)."""
    ids = [vocab.encode(prompt) for prompt in prompts]
    last = [vocab.token_bytes(int(own[-1])) if len(own) else b"" for own in ids]
    drafts = [
        Draft(prompt, Transcript(prompt, config.stop, opening=opening, encoding=encoding))
        for prompt, opening in zip(prompts, map(missing_space, prompts, last), strict=True)
    ]
    for step in stream_tokens(model, ids, config, start=vocab.start, hardware=hardware):
        for draft, token in zip(drafts, step, strict=True):
            draft.add(vocab.token_bytes(int(token)))
        if all(draft.transcript.stopped for draft in drafts):
            break
    return [draft.completion() for draft in drafts]


def for_bytes(config: GenerationConfig) -> GenerationConfig:
    """Return options by which text is generated whose characters are bytes."""
    return replace(config, stop=tuple(each.encode().decode(BYTES) for each in config.stop))


def missing_space(text: bytes, last_token: bytes) -> str:
    """Return the space that ends the last token of `text` if the text itself lacks it."""
    return " " if last_token.endswith(b" ") and not text[-1:].isspace() else ""
