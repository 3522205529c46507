"""`/v1/completions`: from OpenAI's request to those of an engine, and from its events back."""

import json
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import numpy as np

from sparing.data.text import encode_text
from sparing.errors import UserError
from sparing.generate.sampling import SamplingConfig
from sparing.serve.errors import ApiError
from sparing.serve.limits import Limits
from sparing.serve.requests import Event, GenerateRequest, Ids, Piece, TokenScore
from sparing.serve.schema import CompletionRequest
from sparing.serve.service import Events, Model

MAX_TOKENS = 16
"""OpenAI's default."""


def encode_prompt(model: Model, prompt: str | Sequence[int], limits: Limits, param: str) -> Ids:
    """The ids of a text, or ids as they are; those that the model does not know are refused."""
    vocab = model.lm.vocab
    if not isinstance(prompt, str):
        ids = np.array(prompt, dtype=np.int64)
        if len(ids) and int(ids.max()) >= vocab.size:
            raise ApiError(400, f"token ids must be below {vocab.size}", param=param)
    else:
        try:
            ids = vocab.encode(encode_text(prompt)).astype(np.int64)
        except UserError as problem:
            raise ApiError(400, str(problem), param=param) from None
    if len(ids) > limits.prompt_tokens:
        raise ApiError(
            400,
            f"the text has {len(ids)} tokens; the limit is {limits.prompt_tokens}",
            param=param,
            code="context_length_exceeded",
        )
    return ids


def check_count(count: int, limits: Limits, param: str) -> None:
    """Refuse more texts than ever fit, for which the queue would be full at all times."""
    most = limits.lanes + limits.queue
    if count > most:
        raise ApiError(400, f"at most {most} texts can be asked for at once", param=param)


def check_logprobs(count: int, limits: Limits, param: str) -> None:
    """Refuse an answer that could take more memory than there is: it is made as a whole."""
    if count > limits.logprobs:
        raise ApiError(
            400,
            f"up to {count} log-probabilities are asked for; the limit is {limits.logprobs}: "
            "ask for fewer texts or alternatives",
            param=param,
        )


def generate_requests(
    model: Model, asked: CompletionRequest, limits: Limits
) -> list[GenerateRequest]:
    """One request for each choice of each prompt, in the order of their indices."""
    count = asked.n or 1
    if asked.best_of not in (None, count):
        raise ApiError(400, "best_of must equal n, or be left out", param="best_of")
    prompts = _prompts(asked.prompt)
    check_count(len(prompts) * count, limits, "n")
    length = MAX_TOKENS if asked.max_tokens is None else asked.max_tokens
    if length > limits.max_tokens:
        raise ApiError(400, f"max_tokens must be at most {limits.max_tokens}", param="max_tokens")
    seed = secrets.randbits(48) if asked.seed is None else asked.seed
    stop = (asked.stop,) if isinstance(asked.stop, str) else tuple(asked.stop or ())
    requests = list[GenerateRequest]()
    for prompt in prompts:
        ids = encode_prompt(model, prompt, limits, "prompt")
        text = encode_text(prompt) if isinstance(prompt, str) else model.lm.vocab.decode(ids)
        requests += [
            GenerateRequest(
                ids=ids,
                text=text,
                length=length,
                sampling=_sampling(asked, seed + choice),
                stop=stop,
                top=asked.logprobs,
                echo=bool(asked.echo),
            )
            for choice in range(count)
        ]
    if asked.logprobs is not None:
        tokens = sum(length + len(each.ids) * each.echo for each in requests)
        check_logprobs(tokens * (1 + asked.logprobs), limits, "logprobs")
    return requests


def _sampling(asked: CompletionRequest, seed: int) -> SamplingConfig:
    return SamplingConfig(
        temperature=1.0 if asked.temperature is None else asked.temperature,
        top_k=max(0, asked.top_k or 0),
        top_p=1.0 if asked.top_p is None else asked.top_p,
        min_p=asked.min_p or 0.0,
        # NumPy takes no negative seeds.
        seed=seed % (1 << 64),
    )


def _prompts(given: Any) -> list[str | list[int]]:
    if given is None:
        return [""]
    return [given] if isinstance(given, str) or isinstance(given[0], int) else list(given)


class CompletionResponse:
    """The JSON of one completion: whole, or chunk by chunk."""

    def __init__(self, model: Model, asked: CompletionRequest, requests: Sequence[GenerateRequest]):
        self._head = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model.id,
        }
        self._requests, self._count = requests, asked.n or 1
        self._usage_wanted = bool(asked.stream_options and asked.stream_options.include_usage)
        self._written = [0] * len(requests)

    async def whole(self, events: Events) -> dict[str, Any]:
        """Wait for all choices."""
        found = [list[Piece]() for _ in self._requests]
        async for index, event in events:
            found[index].append(self._note(index, event))
        choices = [self._choice(index, pieces) for index, pieces in enumerate(found)]
        return {**self._head, "choices": choices, "usage": self._usage()}

    async def chunks(self, events: Events) -> AsyncGenerator[str]:
        """Yield server-sent events. An error before the first is raised, a later one sent."""
        begun = False
        async with events:
            try:
                async for index, event in events:
                    choice = self._choice(index, [self._note(index, event)])
                    yield _sent({**self._head, "choices": [choice], **self._no_usage()})
                    begun = True
            except ApiError as problem:
                if not begun:
                    raise
                yield _sent(problem.body())
                return
            if self._usage_wanted:
                yield _sent({**self._head, "choices": [], "usage": self._usage()})
            yield "data: [DONE]\n\n"

    def _note(self, index: int, event: Event) -> Piece:
        assert isinstance(event, Piece)
        self._written[index] = event.tokens
        return event

    def _choice(self, index: int, pieces: Sequence[Piece]) -> dict[str, Any]:
        scores = [score for piece in pieces for score in piece.scores]
        wanted = self._requests[index].top is not None
        return {
            "index": index,
            "text": "".join(piece.text for piece in pieces),
            "finish_reason": pieces[-1].finish,
            "logprobs": logprobs(scores) if wanted else None,
        }

    def _usage(self) -> dict[str, int]:
        # Several choices of a prompt are written after reading it once.
        read = sum(len(request.ids) for request in self._requests[:: self._count])
        written = sum(self._written)
        return {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
        }

    def _no_usage(self) -> dict[str, None]:
        return {"usage": None} if self._usage_wanted else {}


def logprobs(scores: Sequence[TokenScore]) -> dict[str, Any]:
    """OpenAI's lists, and the same with bytes, which need not be whole characters."""
    return {
        "tokens": [token_name(score.token) for score in scores],
        "token_logprobs": [score.logprob for score in scores],
        "top_logprobs": [
            # The token itself is always among them.
            {token_name(token): logprob for token, logprob in [*score.top, score[:2]]}
            for score in scores
        ],
        "text_offset": [score.offset for score in scores],
        "bytes": [list(score.token) for score in scores],
        "top_bytes": [top_bytes(score) for score in scores],
    }


def top_bytes(score: TokenScore) -> list[dict[str, Any]]:
    """The most probable tokens, each as bytes with its log-probability."""
    return [{"bytes": list(token), "logprob": logprob} for token, logprob in score.top]


def token_name(token: bytes) -> str:
    r"""A token as text; a part of a character as OpenAI writes it: `bytes:\xc3`."""
    try:
        return token.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)


def _sent(data: Any) -> str:
    # All but ASCII is escaped: some clients end a line at any line separator of Unicode.
    return f"data: {json.dumps(data)}\n\n"
