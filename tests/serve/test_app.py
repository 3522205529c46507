"""The other endpoints, and how errors look."""

import openai
import pytest
from tests.serve.conftest import Running, client

from sparing.lm import LM
from sparing.serve import app


def test_errors_are_those_of_openai(server: Running) -> None:
    with client(server) as openai_client:
        with pytest.raises(openai.NotFoundError, match="one of: tiny, twin"):
            openai_client.completions.create(model="gpt", prompt="a")
        with pytest.raises(openai.BadRequestError, match="max_tokens"):
            openai_client.completions.create(model="tiny", prompt="a", max_tokens=10**6)


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


def test_other_paths_methods_and_types(server: Running) -> None:
    assert server.request("/nothing")[0] == 404
    assert server.request("/page/../../../etc/passwd")[0] == 404
    assert server.request("/v1/completions")[0] == 405
    # As curl sends it where no type is given.
    plain = {"Content-Type": "application/x-www-form-urlencoded"}
    status, found, _ = server.request("/v1/completions", b'{"prompt": "a"}', **plain)
    assert (status, found["error"]["message"]) == (400, app.NO_OBJECT)
    status, found, _ = server.request("/v1/completions", b'{"prompt": "a\0"}')
    assert (status, found["error"]["param"]) == (400, None)
    assert found["error"]["message"].startswith("the body is not JSON: ")
    for body in (b"", b"[]", b"5", b"null"):
        status, found, _ = server.request("/v1/completions", body)
        assert (status, found["error"]["message"]) == (400, app.NO_OBJECT)
    assert server.request("/attention", {"text": ""})[0] == 400
    assert server.request("/score", {"texts": ["a", ""]})[0] == 400
