"""Requests in progress: what an engine does with each chunk read and each token written.

Axes: T tokens, D dim, V vocabulary, K alternatives.
"""

import codecs
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from sparing.data.vocab import Vocab
from sparing.errors import bad_predictions
from sparing.generate.text import Finish, Transcript, missing_space
from sparing.models.api import State
from sparing.serve.lanes import AttentionReader, Lanes
from sparing.serve.requests import (
    AttentionRequest,
    AttentionResult,
    Event,
    GenerateRequest,
    Ids,
    Piece,
    Request,
    ScoreRequest,
    ScoreResult,
    TokenScore,
)


class Task:
    """A text that is read in chunks, and perhaps gone on from."""

    from_prefix = True
    """Whether it may begin after what was read of another text; not if every token counts."""

    one_at_a_time = False
    """Whether others of its kind wait until it is done, because its state is large."""

    def __init__(self, lanes: Lanes, ids: Ids) -> None:
        self.lanes, self.vocab = lanes, lanes.lm.vocab
        self.ids = np.concatenate([[self.vocab.start], ids]).astype(np.int64)
        """The start token and the text."""
        self.read = 0
        """Tokens read so far."""

    @property
    def left(self) -> int:
        """Tokens that have not been read."""
        return len(self.ids) - self.read

    def read_chunk(self, lane: int) -> Tensor:
        """Read the next chunk; return the last layer (D) at its end."""
        ids = self.ids[self.read : self.read + self.lanes.chunk]
        hidden_TD = self.lanes.read(lane, ids)
        self.take(hidden_TD)
        self.read += len(ids)
        return hidden_TD[-1]

    def take(self, hidden_TD: Tensor) -> None:
        """Use the last layer at the tokens read last."""

    def finish(self) -> Event | None:
        """All is read: the answer, or None if a text will be written."""
        raise NotImplementedError


def task_for(lanes: Lanes, attention: AttentionReader, request: Request) -> Task:
    """Begin to work on a request."""
    if isinstance(request, GenerateRequest):
        return GenerateTask(lanes, request)
    if isinstance(request, ScoreRequest):
        return ScoreTask(lanes, request.ids, request.top)
    return AttentionTask(lanes, attention, request)


class ScoreTask(Task):
    """Log-probabilities of all tokens of a text."""

    from_prefix = False

    def __init__(self, lanes: Lanes, ids: Ids, top: int) -> None:
        super().__init__(lanes, ids)
        self.top, self.scores = top, list[TokenScore]()
        self._offsets = Offsets(b"")

    def take(self, hidden_TD: Tensor) -> None:
        """See `Task`."""
        targets_T = self.ids[self.read + 1 : self.read + 1 + len(hidden_TD)]
        logits_TV = self.lanes.logits(hidden_TD[: len(targets_T)])
        for token, logprob, best in score_rows(self.vocab, logits_TV, targets_T, self.top):
            self.scores.append(TokenScore(token, logprob, best, self._offsets.push(token)))

    def finish(self) -> Event | None:
        """See `Task`."""
        return ScoreResult(self.scores)


class AttentionTask(Task):
    """Attention weights at the last token of a text."""

    from_prefix = False
    one_at_a_time = True

    def __init__(self, lanes: Lanes, attention: AttentionReader, request: AttentionRequest) -> None:
        super().__init__(lanes, request.ids[:-1])
        self._attention, self._last = attention, int(request.ids[-1])
        self._state: State | None = None

    def read_chunk(self, lane: int) -> Tensor:
        """See `Task`. The lane stays as it is."""
        ids = self.ids[self.read : self.read + self.lanes.chunk]
        self._state = self._attention.read(ids, self._state)
        self.read += len(ids)
        return torch.empty(0)

    def finish(self) -> Event | None:
        """See `Task`."""
        assert self._state is not None
        found = self._attention.look(self._last, self._state)
        weights = {layer: each_HS.float().cpu().numpy() for layer, each_HS in found.items()}
        windows = self.lanes.lm.model.learned_windows()
        shown = {layer: windows[layer] for layer in weights if layer in windows}
        return AttentionResult(weights, shown)


class GenerateTask(Task):
    """A prompt, and the text that is written after it."""

    def __init__(self, lanes: Lanes, request: GenerateRequest) -> None:
        super().__init__(lanes, request.ids)
        self.request = request
        self._prompt = ScoreTask(lanes, request.ids, request.top or 0)
        self.from_prefix = not (request.echo and request.top is not None)
        last = self.vocab.token_bytes(int(request.ids[-1])) if len(request.ids) else b""
        opening = missing_space(request.text, last)
        self._transcript = Transcript(request.text, request.stop, opening=opening)
        self._offsets = Offsets(request.text)
        self._offsets.shift = len(opening)
        self._count, self._released, self._pending = 0, 0, list[TokenScore]()
        # NumPy's default generator, as in `generate.decode`: the same seed, the same text.
        self._random = np.random.default_rng(request.sampling.seed)

    def take(self, hidden_TD: Tensor) -> None:
        """See `Task`."""
        if not self.from_prefix:
            self._prompt.read = self.read
            self._prompt.take(hidden_TD)

    def finish(self) -> Event | None:
        """See `Task`."""
        return self.opening(final=True) if self.request.length == 0 else None

    def opening(self, *, final: bool = False) -> Piece | None:
        """The echo of the prompt; None if none is wanted."""
        if not (self.request.echo or final):
            return None
        text = self._offsets.prompt if self.request.echo else ""
        # A character that the prompt has only begun comes whole with the text written, if any is.
        if self.request.echo and final:
            text += self._offsets.end()
        self._offsets.shift += len(text)
        self._released += len(text)
        return Piece(text, self._prompt.scores, "length" if final else None, 0)

    def draw(self) -> float:
        """The random number that chooses the next token."""
        return float(self._random.random())

    def write(self, id: int, logits_V: Tensor) -> Piece | None:
        """Add a token; the text and tokens that are final now, if any."""
        token, top = self.vocab.token_bytes(id), self.request.top
        self._count += 1
        if top is not None:
            ((_, logprob, best),) = score_rows(self.vocab, logits_V[None], np.array([id]), top)
            self._pending.append(TokenScore(token, logprob, best, self._offsets.push(token)))
        text = self._transcript.push(token)
        if self._transcript.stopped:
            return self._release(text, "stop")
        if self._count == self.request.length:
            return self._release(text + self._transcript.push(b"", final=True), "length")
        return self._release(text, None)

    def _release(self, text: str, finish: Finish | None) -> Piece | None:
        self._released += len(text)
        count = sum(score.offset < self._released for score in self._pending)
        if finish == "length":
            count = len(self._pending)
        scores, self._pending = self._pending[:count], self._pending[count:]
        if not (text or finish or scores):
            return None
        return Piece(text, scores, finish, self._count)


class Offsets:
    """Where tokens begin in a text, counted in characters."""

    def __init__(self, prompt: bytes) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self.prompt = self._decoder.decode(prompt)
        """The whole characters of the prompt."""
        self.shift = 0
        """Characters before the first token."""

    def end(self) -> str:
        """Return what stands for a character that was only begun, if one was."""
        return self._decoder.decode(b"", final=True)

    def push(self, token: bytes) -> int:
        """Return the characters before the one that `token` begins or continues."""
        begin = self.shift
        self.shift += len(self._decoder.decode(token))
        return begin


def score_rows(
    vocab: Vocab, logits_TV: Tensor, ids_T: Ids, top: int
) -> Iterator[tuple[bytes, float, list[tuple[bytes, float]]]]:
    """Yield each token, its log-probability in nats, and the `top` most probable in its place."""
    if not len(ids_T):
        return
    logprobs_TV = logits_TV.double().log_softmax(-1)
    own_T = logprobs_TV[range(len(ids_T)), torch.from_numpy(ids_T).to(logprobs_TV.device)].tolist()
    best = logprobs_TV.topk(min(top, logprobs_TV.size(1)), dim=-1)
    # JSON has no such numbers.
    if not (np.isfinite(own_T).all() and best.values.isfinite().all()):
        raise bad_predictions()
    rows = zip(ids_T, own_T, best.indices.tolist(), best.values.tolist(), strict=True)
    for id, logprob, ids_K, logprobs_K in rows:
        pairs = zip(ids_K, logprobs_K, strict=True)
        yield vocab.token_bytes(int(id)), logprob, [(vocab.token_bytes(k), p) for k, p in pairs]
