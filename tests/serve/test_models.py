"""The models of a server: all of them, and one by its name."""

import json
from collections.abc import Callable

import openai
import pytest
from tests.serve.conftest import LIMITS, Running, client

from sparing import load
from sparing.lm import LM
from sparing.runs.card import read_card
from sparing.serve.service import Service

ODD = ("a/b", "50 %41", "what? #1", "caf\u00e9", "a+b&c=d", "\\x\"'")


@pytest.fixture(scope="module")
def odd(lm: LM, start_server: Callable[..., Running]) -> Running:
    return start_server(dict.fromkeys(ODD, lm))


@pytest.mark.parametrize("id", ODD)
def test_a_model_of_any_name_is_found_by_the_openai_client(odd: Running, id: str) -> None:
    with client(odd) as openai_client:
        found = openai_client.models.retrieve(id)
        listed = {model.id: model for model in openai_client.models.list()}
        assert found == listed[id]
        answer = openai_client.completions.create(model=id, prompt="a", max_tokens=1)
    assert answer.model == found.id == id


def test_a_model_has_the_size_that_info_shows() -> None:
    stored = read_card()
    assert stored is not None
    with Service({"own": load()}, LIMITS) as service:
        assert service.models["own"].card["parameters"] == stored[1]["parameters"]["deployed"]


def test_a_slash_in_a_name_may_be_written_as_it_is(odd: Running) -> None:
    assert odd.request("/v1/models/a/b")[1] == odd.request("/v1/models/a%2Fb")[1]
    assert odd.request("/v1/models/a/b")[0] == 200


def test_a_model_that_is_not_there_is_an_error_of_openai(server: Running) -> None:
    with client(server) as openai_client:
        for id in ("gpt", "tiny/", "tiny/x", "Tiny", "x" * 300):
            with pytest.raises(openai.NotFoundError, match="one of: tiny, twin") as caught:
                openai_client.models.retrieve(id)
            assert caught.value.code == "model_not_found"
    for path in ("/v1/models/%ff", "/v1/models/a%00b"):
        status, found, _ = server.request(path)
        assert (status, found["error"]["code"]) == (404, "model_not_found")


def test_the_list_of_models_may_be_asked_for_with_a_slash(server: Running) -> None:
    status, found, _ = server.request("/v1/models/")
    assert (status, [model["id"] for model in found["data"]]) == (200, ["tiny", "twin"])


def test_a_model_is_shown_to_clients_with_the_token_only(
    lm: LM, start_server: Callable[..., Running]
) -> None:
    guarded = start_server({"tiny": lm}, token="secret-token")
    assert guarded.request("/v1/models/tiny")[0] == 200
    guarded.token = None
    for id in ("tiny", "gpt"):
        status, found, _ = guarded.request(f"/v1/models/{id}")
        assert (status, found["error"]["code"]) == (401, "invalid_token")
        assert "tiny" not in json.dumps(found)


def test_the_openapi_page_describes_a_model(server: Running) -> None:
    paths = server.request("/openapi.json")[1]["paths"]
    described = paths["/v1/models/{id}"]["get"]
    (parameter,) = described["parameters"]
    assert (parameter["name"], parameter["in"]) == ("id", "path")
    schemas = [
        described["responses"][status]["content"]["application/json"]["schema"]["$ref"]
        for status in ("200", "401", "404")
    ]
    assert [each.rpartition("/")[2] for each in schemas] == ["ModelCard", "ErrorBody", "ErrorBody"]


def test_the_openapi_page_promises_only_errors_in_the_form_of_openai(server: Running) -> None:
    page = server.request("/openapi.json")[1]
    for operations in page["paths"].values():
        assert all("422" not in each["responses"] for each in operations.values())
    assert not [name for name in page["components"]["schemas"] if "ValidationError" in name]


def test_models_are_counted_under_one_path(server: Running) -> None:
    for id in ("tiny", "gpt-1", "gpt-2"):
        server.request(f"/v1/models/{id}")
    page = server.request("/metrics")[1].decode()
    assert 'sparing_answers_total{path="/v1/models/{id}",status="404"}' in page
    assert "gpt-1" not in page
