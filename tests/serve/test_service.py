"""Answers that are not wanted any more, come too late, or cannot be given at all."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.serve.conftest import LIMITS, Running, eventually, idle, write

from sparing.lm import LM
from sparing.serve.engine import Engine
from sparing.serve.limits import Limits
from sparing.serve.service import Events


def test_a_server_whose_model_does_not_work_says_so(
    lm: LM, start_server: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = start_server({"tiny": lm})
    with monkeypatch.context() as patch:
        patch.setattr(broken.engine, "_works", False)
        for path in ("/health", "/ready"):
            assert broken.request(path)[:2] == (503, {"status": "failed"})
        status, found, headers = broken.request("/v1/completions", {"prompt": "a"})
    assert (status, found["error"]["code"]) == (503, "unavailable")
    assert int(headers["retry-after"]) >= 1
    broken.complete("a")


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_frees_its_lane(server: Running, stream: bool) -> None:
    body = json.dumps({"prompt": "gone", "max_tokens": 512, "n": 16, "stream": stream}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    before = server.engine.counts.tokens_written
    with server.connect(head + f"content-length: {len(body)}\r\n\r\n".encode() + body):
        eventually(lambda: server.engine.counts.tokens_written > before)
    eventually(lambda: idle(server))
    assert server.engine.counts.tokens_written < before + 16 * 512


def test_more_texts_than_ever_fit_are_not_told_to_wait(server: Running) -> None:
    most = LIMITS.lanes + LIMITS.queue
    # Lanes of the test before may not be free yet.
    eventually(lambda: server.request("/score", {"texts": ["a"] * most})[0] == 200)
    eventually(lambda: idle(server))
    for path, body in (("/score", {"texts": ["a"] * 33}), ("/v1/completions", {"n": 33})):
        status, found, headers = server.request(path, body)
        assert (status, found["error"]["message"]) == (
            400,
            f"at most {most} texts can be asked for at once",
        )
        assert "retry-after" not in headers


def test_more_probabilities_than_there_is_memory_for_are_refused(
    lm: LM, start_server: Callable[..., Running]
) -> None:
    small = start_server({"tiny": lm}, replace(LIMITS, logprobs=60))
    echo = {"prompt": "a" * 10, "max_tokens": 0, "echo": True}
    for path, body in (
        ("/v1/completions", {**echo, "logprobs": 2, "n": 2}),
        ("/v1/completions", {"prompt": "a" * 100, "max_tokens": 20, "logprobs": 2}),
        ("/v1/completions", {"max_tokens": 15, "logprobs": 1, "n": 2, "stream": True}),
        ("/score", {"texts": ["a" * 10] * 2, "top": 2}),
        ("/score", {"texts": ["a" * 60]}),
    ):
        assert small.request(path, body)[0] == 200
    for path, body in (
        ("/v1/completions", {**echo, "logprobs": 2, "n": 3}),
        ("/v1/completions", {**echo, "logprobs": 2, "n": 2, "max_tokens": 1}),
        ("/v1/completions", {"max_tokens": 16, "logprobs": 1, "n": 2, "stream": True}),
        ("/score", {"texts": ["a" * 10] * 3, "top": 2}),
        ("/score", {"texts": ["a" * 61]}),
    ):
        status, found, _ = small.request(path, body)
        assert (status, found["error"]["param"]) == (400, "top" if path == "/score" else "logprobs")
        assert "the limit is 60" in found["error"]["message"]
    # Where no probabilities are asked for, none are counted.
    assert small.request("/v1/completions", {"max_tokens": 61})[0] == 200


def test_with_all_its_probabilities_the_longest_text_is_answered() -> None:
    limits = Limits()
    assert 11 * (limits.prompt_tokens + limits.max_tokens) <= limits.logprobs


def test_a_full_queue_is_answered_with_429(lm: LM, start_server: Callable[..., Running]) -> None:
    small = start_server({"tiny": lm}, replace(LIMITS, lanes=1, queue=1, max_tokens=10**6))
    body = json.dumps({"max_tokens": 10**6}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    request = head + f"content-length: {len(body)}\r\n\r\n".encode() + body
    first, second = small.connect(request), small.connect(request)
    with first, second:
        eventually(lambda: small.engine.counts.queued == small.engine.counts.lanes_busy == 1)
        status, found, headers = small.request("/v1/completions", {"prompt": "a"})
        assert (status, found["error"]["code"]) == (429, "queue_full")
        assert int(headers["retry-after"]) >= 1
    eventually(lambda: idle(small))
    small.complete("a")


def test_an_answer_that_takes_too_long_is_an_error(
    lm: LM, start_server: Callable[..., Running]
) -> None:
    quick = start_server({"tiny": lm}, replace(LIMITS, time_s=0.3, max_tokens=10**6))
    status, found, _ = quick.request("/v1/completions", {"max_tokens": 10**6})
    assert (status, found["error"]["code"]) == (504, "timeout")
    _, sent, _ = quick.request("/v1/completions", {"max_tokens": 10**6, "stream": True})
    *_, last, end = sent.decode().split("\n\n")
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "timeout"
    assert not end
    eventually(lambda: idle(quick))


def test_others_get_their_turn_between_two_events_that_wait(engine: Engine) -> None:
    async def read() -> list[int]:
        turns, found = 0, []

        async def take_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with Events(engine, [write("a", 20)]) as events:
            while events._queue.qsize() < 20:
                await asyncio.sleep(0.01)
            other = asyncio.create_task(take_turns())
            async for _ in events:
                found.append(turns)
            other.cancel()
        return found

    found = asyncio.run(read())
    assert len(found) == len({*found}) == 20
