"""`/v1/completions`: OpenAI's client, and everything a client can get wrong."""

import json
from typing import Any

import pytest
from tests.serve.conftest import Running, client, texts

from sparing.lm import LM


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


CLIENTS: dict[str, dict[str, Any]] = {
    # As OpenAI's own client sends None.
    "nulls": dict.fromkeys([
        "prompt", "best_of", "echo", "frequency_penalty", "logit_bias", "logprobs", "max_tokens",
        "n", "presence_penalty", "seed", "stop", "stream", "stream_options", "suffix",
        "temperature", "top_p", "user", "top_k", "min_p",
    ]),
    "LangChain": {
        "prompt": ["a", "b"], "temperature": 0.7, "top_p": 1, "frequency_penalty": 0,
        "presence_penalty": 0, "n": 1, "logit_bias": {}, "max_tokens": 3, "seed": None,
        "stop": None,
    },
    "LiteLLM": {
        "prompt": "a", "suffix": "", "user": "", "best_of": 2, "n": 2, "stop": [],
        "stream_options": {"include_usage": None},
    },
    "lm-evaluation-harness": {
        "prompt": [[97, 98, 99]], "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234,
        "echo": True,
    },
    "vLLM": {
        "prompt": "a", "repetition_penalty": 1.0, "max_tokens": 2, "logprobs": None, "top_k": -1,
        "min_p": 0, "ignore_eos": True,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CLIENTS)
def test_what_other_clients_send_at_their_defaults_is_answered(server: Running, name: str) -> None:
    assert server.complete(**CLIENTS[name])["choices"]


def test_defaults_that_are_sent_change_nothing(server: Running) -> None:
    expected = server.complete("a", seed=1)["choices"]
    for fields in (
        {"top_k": -1, "min_p": None, "repetition_penalty": 1, "ignore_eos": False},
        dict.fromkeys(CLIENTS["nulls"].keys() - {"prompt", "seed"}),
    ):
        assert server.complete("a", seed=1, **fields)["choices"] == expected
    assert server.complete(None, seed=1)["choices"] == server.complete("", seed=1)["choices"]


REFUSED = {
    "prompt": ([5, "a"], [], [[]], [["a"]], {}, True, 5, [1.5], [-1]),
    "stop": ("", ["a", ""], 5, ["a"] * 17, "a" * 257),
    "suffix": ("b",),
    "logit_bias": ({"97": 1},),
    "frequency_penalty": (0.5,),
    "presence_penalty": (-0.5,),
    "repetition_penalty": (1.1, 0),
    "best_of": (2,),
    "top_k": (-2,),
    "max_completion_tokens": (5,),
    "messages": ([{"role": "user", "content": "a"}],),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_supported_is_refused_in_words_about_the_field(
    server: Running, name: str
) -> None:
    for value in REFUSED[name]:
        status, found, _ = server.request("/v1/completions", {"prompt": "a", name: value})
        assert (status, found["error"]["param"]) == (400, name)
        message = found["error"]["message"]
        assert message.startswith(name)
        # Words of the library that checks the types.
        for word in ("constrained", "function", "Value error", "Extra inputs", "String should"):
            assert word not in message


def test_usage_counts_each_prompt_once_and_every_token_written(server: Running, lm: LM) -> None:
    whole = lm.generate("abc", length=40, seed=1)
    stop = whole[9:12]
    for fields, read, written in (
        ({"prompt": "abc", "max_tokens": 5}, 3, 5),
        ({"prompt": "abc", "max_tokens": 5, "n": 3}, 3, 15),
        ({"prompt": ["abc", "d", ""], "max_tokens": 5, "n": 2, "best_of": 2}, 4, 30),
        ({"prompt": [[97, 98], [99]], "max_tokens": 5, "echo": True}, 3, 10),
        ({"prompt": "abc", "max_tokens": 0, "echo": True}, 3, 0),
        ({"prompt": "abc", "max_tokens": 40, "seed": 1, "stop": stop},
         3, whole.index(stop) + len(stop)),
    ):  # fmt: skip
        expected = {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
        }
        assert server.complete(**fields)["usage"] == expected
        body = {**fields, "stream": True, "stream_options": {"include_usage": True}}
        _, sent, _ = server.request("/v1/completions", body)
        *events, done, _ = sent.decode().split("\n\n")
        chunks = [json.loads(event.removeprefix("data: ")) for event in events]
        assert done == "data: [DONE]"
        assert [chunk["usage"] for chunk in chunks] == [None] * (len(chunks) - 1) + [expected]
        assert chunks[-1]["choices"] == []
