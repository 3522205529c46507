"""The HTTP interface: OpenAI's client, and everything a client can get wrong."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.serve.conftest import LIMITS, Running, eventually, texts

from sparing import load
from sparing.lm import LM
from sparing.runs.card import read_card
from sparing.serve import app
from sparing.serve.service import Service


def client(server: Running, token: str = "none") -> openai.OpenAI:
    address = f"http://127.0.0.1:{server.port}/v1"
    return openai.OpenAI(base_url=address, api_key=server.token or token, max_retries=0)


def idle(server: Running) -> bool:
    return all(
        model.engine.counts.lanes_busy == model.engine.counts.queued == 0
        for model in server.service.models.values()
    )


def figure(server: Running, name: str) -> float:
    page = server.request("/metrics")[1].decode()
    found = [line.rsplit(" ", 1)[1] for line in page.splitlines() if line.startswith(name)]
    return float(found[0]) if found else 0.0


@pytest.fixture(autouse=True)
def no_lane_leaks(request: pytest.FixtureRequest) -> Any:
    yield
    if "server" in request.fixturenames:
        eventually(lambda: idle(request.getfixturevalue("server")))


def test_the_openai_client_gets_the_text_of_generate(server: Running, lm: LM) -> None:
    with client(server) as openai_client:
        answer = openai_client.completions.create(
            model="tiny", prompt=["to be", "or not"], n=2, seed=4, max_tokens=12, logprobs=2
        )
    expected = [lm.generate(p, length=12, seed=s) for p in ("to be", "or not") for s in (4, 5)]
    assert [choice.text for choice in answer.choices] == expected
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert {choice.finish_reason for choice in answer.choices} == {"length"}
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (11, 48)
    found = answer.choices[0].logprobs
    assert found is not None
    assert "".join(found.tokens or ()) == expected[0]
    assert found.text_offset == list(range(12))
    pairs = zip(found.token_logprobs or (), found.top_logprobs or (), strict=True)
    assert all(logprob in top.values() for logprob, top in pairs)


def test_the_openai_client_streams_the_same_text(server: Running, lm: LM) -> None:
    with client(server) as openai_client:
        chunks = list(
            openai_client.completions.create(
                model="twin",
                prompt="to be",
                seed=4,
                max_tokens=12,
                stream=True,
                stream_options={"include_usage": True},
            )
        )
        models = [model.id for model in openai_client.models.list()]
    assert models == ["tiny", "twin"]
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == lm.generate(
        "to be", length=12, seed=4
    )
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * 11 + ["length"]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 17


def test_a_model_has_the_size_that_info_shows() -> None:
    stored = read_card()
    assert stored is not None
    with Service({"own": load()}, LIMITS) as service:
        assert service.models["own"].card["parameters"] == stored[1]["parameters"]["deployed"]


def test_line_separators_in_a_text_do_not_end_a_line_of_a_stream(server: Running) -> None:
    prompt = "next line \x85, line separator \u2028"
    body = {"prompt": prompt, "max_tokens": 0, "echo": True, "stream": True}
    _, sent, _ = server.request("/v1/completions", body)
    # As clients split lines that decode the stream first.
    (chunk, _) = [line for line in sent.decode().splitlines() if line]
    assert json.loads(chunk.removeprefix("data: "))["choices"][0]["text"] == prompt


def test_an_echo_ends_with_the_character_that_the_prompt_has_begun(server: Running) -> None:
    for prompt, expected in (([97, 195], "a\ufffd"), ([97, 195, 169], "a\u00e9")):
        for stream in (False, True):
            body = {"prompt": prompt, "max_tokens": 0, "echo": True, "stream": stream}
            _, found, _ = server.request("/v1/completions", body)
            if stream:
                found = json.loads(found.decode().splitlines()[0].removeprefix("data: "))
            assert found["choices"][0]["text"] == expected


def test_errors_are_those_of_openai(server: Running) -> None:
    with client(server) as openai_client:
        with pytest.raises(openai.NotFoundError, match="one of: tiny, twin"):
            openai_client.completions.create(model="gpt", prompt="a")
        with pytest.raises(openai.BadRequestError, match="max_tokens"):
            openai_client.completions.create(model="tiny", prompt="a", max_tokens=10**6)


def test_stop_and_echo(server: Running, lm: LM) -> None:
    whole = lm.generate("a", length=40, seed=1)
    found = server.complete("a", max_tokens=40, seed=1, stop=[whole[9:11], "zz"], echo=True)
    (choice,) = found["choices"]
    assert choice["text"] == "a" + whole[: whole.index(whole[9:11])]
    assert choice["finish_reason"] == "stop"


def test_a_prompt_may_be_given_as_token_ids(server: Running) -> None:
    same = [{"prompt": "ab"}, {"prompt": [97, 98]}, {"prompt": [[97, 98]]}]
    found = [texts(server.complete(seed=2, **each)) for each in same]
    assert found[0] == found[1] == found[2]
    # Not UTF-8: what the prompt has begun, the text completes.
    whole = server.complete([195], echo=True, max_tokens=3, logprobs=0, seed=1)
    assert whole["choices"][0]["logprobs"]["bytes"][0] == [195]
    assert whole["choices"][0]["logprobs"]["tokens"][0] == "bytes:\\xc3"


def test_without_a_seed_texts_differ(server: Running) -> None:
    assert len({*(texts(server.complete("a"))[0] for _ in range(5))}) == 5


def test_scores(server: Running, lm: LM) -> None:
    status, found, _ = server.request("/score", {"texts": ["to be", "caf\u00e9"], "top": 2})
    assert status == 200
    for each, expected in zip(found["scores"], lm.score(["to be", "caf\u00e9"]), strict=True):
        assert each["bits_per_byte"] == pytest.approx(expected.bits_per_byte, rel=1e-4)
        assert each["bytes"] == each["tokens"] == len(each["token_logprobs"]) == 5
        assert [len(top) for top in each["top_bytes"]] == [2] * 5
    assert found["scores"][1]["token_bytes"][-2:] == [[195], [169]]


def test_attention(server: Running) -> None:
    status, found, _ = server.request("/attention", {"text": "to be or not"})
    assert (status, found["length"], found["model"]) == (200, 12, "tiny")
    (layer,) = found["layers"]
    assert [head["span"] for head in layer["heads"]] == pytest.approx([7.5, 44])
    assert [sum(head["weights"]) for head in layer["heads"]] == pytest.approx([1, 1], abs=1e-4)
    assert len(layer["heads"][0]["weights"]) < len(layer["heads"][1]["weights"]) == 13


def test_probes_and_figures(server: Running) -> None:
    server.complete("counted", max_tokens=3)
    assert server.request("/health")[:2] == (200, {"status": "ok"})
    assert server.request("/ready")[:2] == (200, {"status": "ready"})
    status, page, headers = server.request("/metrics")
    assert status == 200
    assert headers["content-type"].startswith("text/plain; version=")
    lines = dict(line.rsplit(" ", 1) for line in page.decode().splitlines() if line[0] != "#")
    assert float(lines['sparing_tokens_written_total{model="tiny"}']) >= 3
    assert float(lines['sparing_lanes_busy{model="twin"}']) == 0
    assert float(lines['sparing_answers_total{path="/v1/completions",status="200"}']) >= 1


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


BAD: list[tuple[str, Any, int]] = [
    ("not JSON", b'{"prompt": ', 400),
    ("no UTF-8", b'{"prompt": "\xff\xfe"}', 400),
    ("half a surrogate", b'{"prompt": "\\ud800"}', 400),
    ("deep", b"[" * 100_000, 400),
    ("a list", [], 400),
    ("a number", {"prompt": 5}, 400),
    ("a null in a list", {"prompt": ["a", None]}, 400),
    ("no text", {"prompt": []}, 400),
    ("an id too large", {"prompt": [256]}, 400),
    ("a negative id", {"prompt": [-1]}, 400),
    ("text as number", {"max_tokens": "5"}, 400),
    ("half a token", {"max_tokens": 1.5}, 400),
    ("a digit too many", b'{"max_tokens": 1' + b"0" * 5000 + b"}", 400),
    ("not a number", b'{"temperature": NaN}', 400),
    ("infinite", b'{"temperature": 1e999}', 400),
    ("negative", {"temperature": -1}, 400),
    ("no share", {"top_p": 0}, 400),
    ("an empty stop", {"stop": ""}, 400),
    ("a field of another server", {"beam_width": 4}, 400),
    ("a penalty", {"frequency_penalty": 1.0}, 400),
    ("a bias", {"logit_bias": {"5": 1}}, 400),
    ("the best of more", {"best_of": 3}, 400),
    ("too many", {"n": 128}, 400),
    ("too long an answer", {"max_tokens": 513}, 400),
    ("too long a prompt", {"prompt": "a" * 4097}, 400),
    ("too many probabilities", {"logprobs": 11}, 400),
    ("an unknown model", {"model": "gpt"}, 404),
    ("a model that is no text", {"model": 5}, 400),
    ("huge", b'{"prompt": "' + b"a" * (1 << 21) + b'"}', 413),
]


@pytest.mark.parametrize(("body", "expected"), [each[1:] for each in BAD], ids=[e[0] for e in BAD])
def test_what_makes_no_sense_is_refused_in_one_line(
    server: Running, body: Any, expected: int, capfd: pytest.CaptureFixture[str]
) -> None:
    status, found, headers = server.request("/v1/completions", body)
    assert status == expected
    assert found["error"].keys() == {"message", "type", "param", "code"}
    assert 0 < len(found["error"]["message"]) < 300
    assert "Traceback" not in json.dumps(found) + capfd.readouterr().err
    assert headers["x-content-type-options"] == "nosniff"


def test_odd_but_sensible_requests_are_answered(server: Running) -> None:
    for fields in (
        {"prompt": "\x00\x00"},
        {"prompt": ""},
        {"prompt": "\N{GRINNING FACE}" * 20, "echo": True},
        {"seed": -5},
        {"temperature": 0, "top_k": 3, "top_p": 0.5, "min_p": 0.1},
        {"max_tokens": 0, "echo": True, "logprobs": 0, "prompt": "scored"},
        {"max_tokens": None, "n": None, "stop": None, "user": "me", "best_of": 1},
    ):
        server.complete(**fields)


def test_other_paths_methods_and_types(server: Running) -> None:
    assert server.request("/nothing")[0] == 404
    assert server.request("/page/../../../etc/passwd")[0] == 404
    assert server.request("/v1/completions")[0] == 405
    assert (
        server.request("/v1/completions", b"prompt=a", **{"Content-Type": "text/plain"})[0] == 400
    )
    status, found, _ = server.request("/v1/completions", b'{"prompt": "a\0"}')
    assert (status, found["error"]["param"]) == (400, None)
    assert found["error"]["message"].startswith("the body is not JSON: ")
    assert server.request("/attention", {"text": ""})[0] == 400
    assert server.request("/score", {"texts": ["a", ""]})[0] == 400


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
