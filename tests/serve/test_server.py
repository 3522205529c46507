"""What is no HTTP, and clients that take their time: they are given up, nothing stays behind."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest
from tests.serve.conftest import LIMITS, Running, eventually, idle

from sparing.lm import LM
from sparing.serve.server import Protocol


@pytest.mark.parametrize("data", [
    b"GET / HTTP/1.1\r\n" + b"x-flood: a\r\n" * 100_000,
    b"GET /" + b"a" * 200_000,
    b"\x00\xff\x16\x03\x01 what is this\r\n\r\n",
    b"POST /score HTTP/1.1\r\nhost: localhost\r\ncontent-length: -5\r\n\r\n",
    b"POST /score HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
])  # fmt: skip
def test_what_is_no_http_is_answered_with_400(server: Running, data: bytes) -> None:
    with server.connect() as connection:
        try:
            connection.sendall(data)
            answer = connection.recv(1000)
        except ConnectionError:
            # The server had enough before all was sent.
            return
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"Traceback" not in answer


def test_as_many_connections_are_served_as_the_limit_says(
    lm: LM, start_server: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Protocol, "headers_s", 600)
    small = start_server({"tiny": lm}, replace(LIMITS, connections=2))
    with small.connect():
        assert small.request("/health")[0] == 200
        with small.connect():
            eventually(lambda: small.request("/health")[0] == 503)
    eventually(lambda: small.request("/health")[0] == 200)


@pytest.fixture
def impatient(
    lm: LM, start_server: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> Running:
    monkeypatch.setattr(Protocol, "headers_s", 0.3)
    monkeypatch.setattr(Protocol, "stalled_s", 0.3)
    return start_server({"tiny": lm})


@pytest.mark.parametrize("begun", [b"", b"GET /health HTTP/1.1\r\nx-slow: "])
def test_a_request_that_does_not_come_is_not_waited_for(impatient: Running, begun: bytes) -> None:
    with impatient.connect(begun) as connection, suppress(ConnectionResetError):
        assert connection.recv(100) == b""


def test_a_second_request_may_come_later_but_must_come_whole(impatient: Running) -> None:
    whole = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with impatient.connect(whole) as connection:
        answer = b""
        while not answer.endswith(b'{"status":"ok"}'):
            answer += (part := connection.recv(2000))
            assert part
        connection.sendall(whole[:20])
        with suppress(ConnectionResetError):
            assert connection.recv(100) == b""


def test_a_client_that_takes_nothing_of_its_answer_is_given_up(impatient: Running) -> None:
    body = json.dumps(
        {"prompt": "a", "max_tokens": 512, "n": 16, "logprobs": 10, "stream": True}
    ).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    request = head + f"content-length: {len(body)}\r\n\r\n".encode() + body
    connections = [impatient.connect(request) for _ in range(2)]
    # Small buffers of the system would fill sooner; these answers are larger than any.
    eventually(lambda: idle(impatient))
    eventually(lambda: status_of(impatient) > 0)
    for connection in connections:
        connection.close()


def status_of(server: Running) -> float:
    """How many streams have ended."""
    page = server.request("/metrics")[1].decode()
    lines = dict(line.rsplit(" ", 1) for line in page.splitlines() if line[0] != "#")
    return float(lines.get('sparing_answers_total{path="/v1/completions",status="200"}', 0))
