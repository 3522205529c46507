"""Who is answered: tokens, names of this machine, pages of other sites, bodies too long."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.serve.conftest import Running, client, eventually

from sparing.lm import LM
from sparing.serve import app, completions


def figure(server: Running, name: str) -> float:
    page = server.request("/metrics")[1].decode()
    found = [line.rsplit(" ", 1)[1] for line in page.splitlines() if line.startswith(name)]
    return float(found[0]) if found else 0.0


def test_a_body_in_chunks_is_limited_too(server: Running) -> None:
    head = b"POST /score HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    with server.connect(head + b"transfer-encoding: chunked\r\n\r\n") as connection:
        try:
            for _ in range(40):
                connection.sendall(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
        except ConnectionError:
            pass
        assert connection.recv(100).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize("stream", [False, True])
def test_an_error_of_our_own_is_answered_and_counted_like_any_other(
    server: Running,
    stream: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*given: object) -> None:
        raise ValueError("a mistake")

    failed = 'sparing_answers_total{path="/v1/completions",status="500"}'
    before = figure(server, failed)
    monkeypatch.setattr(completions.CompletionResponse, "_choice", fail)
    status, found, headers = server.request("/v1/completions", {"prompt": "a", "stream": stream})
    assert (status, found["error"]["type"]) == (500, "server_error")
    assert "a mistake" not in found["error"]["message"]
    assert headers["x-content-type-options"] == "nosniff"
    assert figure(server, failed) == before + 1
    eventually(lambda: "a mistake" in caplog.text)


def test_an_error_of_our_own_in_the_middle_is_the_last_event_of_a_stream(
    server: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    choice = completions.CompletionResponse._choice

    def fail_later(*given: Any) -> Any:
        if given[2][-1].tokens > 3:
            raise ValueError("a mistake")
        return choice(*given)

    monkeypatch.setattr(completions.CompletionResponse, "_choice", fail_later)
    body = {"prompt": "a", "stream": True, "max_tokens": 400}
    _, sent, _ = server.request("/v1/completions", body)
    *chunks, last, end = sent.decode().split("\n\n")
    assert len(chunks) == 3
    assert json.loads(last.removeprefix("data: "))["error"]["type"] == "server_error"
    assert not end
    eventually(lambda: "a mistake" in caplog.text)


def test_a_token_is_needed_where_one_is_set(lm: LM, start_server: Callable[..., Running]) -> None:
    guarded = start_server({"tiny": lm}, token="secret-token")
    guarded.complete("a")
    with client(guarded) as openai_client:
        openai_client.completions.create(model="tiny", prompt="a")
    for path in ("/v1/models", "/metrics", "/nothing"):
        for header in ("Bearer secret-tokem", "Basic secret-token", "Bearer", "\xff"):
            status, found, _ = guarded.request(path, Authorization=header)
            assert (status, found["error"]["type"]) == (401, "authentication_error")
    guarded.token = None
    assert guarded.request("/v1/completions", {"prompt": "a"})[0] == 401
    assert guarded.request("/health")[0] == guarded.request("/ready")[0] == 200


def test_without_a_token_only_names_of_this_machine_are_answered(server: Running) -> None:
    assert server.request("/v1/models", Host="evil.example")[0] == 421
    assert server.request("/v1/models", Host="[::1]:80")[0] == 200
    assert server.request("/v1/models", Host="LocalHost:80")[0] == 200


ELSEWHERE = [
    {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site", "Origin": "http://localhost:3000"},
    # Of browsers that send no Sec-Fetch-Site.
    {"Origin": "https://evil.example"},
    {"Origin": "http://127.0.0.1:1"},
    {"Origin": "http://localhost"},
    {"Origin": "null"},
]


@pytest.mark.parametrize("headers", ELSEWHERE)
def test_without_a_token_pages_of_other_sites_are_refused(
    server: Running, headers: dict[str, str]
) -> None:
    refused = 'sparing_answers_total{path="/score",status="403"}'
    before = figure(server, refused)
    for path, body in (("/score", {"texts": ["a"]}), ("/v1/completions", {"prompt": "a"})):
        status, found, _ = server.request(path, body, **headers)
        assert (status, found["error"]["code"]) == (403, "wrong_origin")
    assert figure(server, refused) == before + 1
    # A link to the server from another page works: nobody but the user sees the answer.
    assert server.request("/", **headers, **{"Sec-Fetch-Mode": "navigate"})[0] == 200


def test_the_server_s_own_page_and_other_programs_are_answered(
    server: Running, lm: LM, start_server: Callable[..., Running]
) -> None:
    own = f"http://127.0.0.1:{server.port}"
    for headers in (
        {"Sec-Fetch-Site": "same-origin", "Origin": own},
        {"Sec-Fetch-Site": "none"},
        {"Origin": own},
        # Through a tunnel from another port, or a proxy that puts its own name for the server's.
        {"Origin": "http://localhost:9000", "Host": "localhost:9000"},
        {"Sec-Fetch-Site": "same-origin", "Origin": "https://notebooks.example"},
        {},
    ):
        assert server.request("/score", {"texts": ["a"]}, **headers)[0] == 200
    guarded = start_server({"tiny": lm}, token="secret-token")
    for headers in ELSEWHERE:
        assert guarded.request("/score", {"texts": ["a"]}, **headers)[0] == 200


def test_the_page_is_sent_with_a_strict_policy_and_needs_no_token(
    lm: LM,
    start_server: Callable[..., Running],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "index.html").write_text("<!doctype html><title>a page</title>")
    (tmp_path / "page.js").write_text("// a script")
    monkeypatch.setattr(app, "PAGE", tmp_path)
    with_page = start_server({"tiny": lm}, token="secret-token")
    with_page.token = None
    for path, kind in (("/", "text/html"), ("/page/page.js", "text/javascript")):
        status, _, headers = with_page.request(path)
        assert status == 200
        assert headers["content-type"].startswith(kind)
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
    assert with_page.request("/page/../app.py")[0] == 404
    assert with_page.request("/page/missing.js")[0] == 404
