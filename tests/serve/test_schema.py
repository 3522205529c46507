"""The OpenAPI page against the server: requests made from it never end in an error of ours."""

from collections.abc import Iterator

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode, checks
from tests.serve.conftest import Running

CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]


def ask_from_page(server: Running, examples: int) -> list[int]:
    """Send requests that fit the page and some that do not; return the statuses of the answers."""
    status, page, _ = server.request("/openapi.json")
    assert status == 200
    return [
        found
        for operation in schemathesis.openapi.from_dict(page).get_all_operations()
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
        for found in _ask(server, operation.ok(), mode, examples)
    ]


def _ask(
    server: Running, operation: schemathesis.APIOperation, mode: GenerationMode, examples: int
) -> Iterator[int]:
    if operation.method == "get" and mode is GenerationMode.NEGATIVE:
        # Nothing about them can be wrong.
        return
    statuses = list[int]()
    with requests.Session() as session:

        @settings(
            max_examples=examples,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def ask(case: schemathesis.Case) -> None:
            url = f"http://127.0.0.1:{server.port}"
            answer = case.call_and_validate(base_url=url, session=session, checks=CHECKS)
            statuses.append(answer.status_code)

        ask()
    yield from statuses


def test_requests_made_from_the_openapi_page_are_answered_as_it_says(server: Running) -> None:
    statuses = ask_from_page(server, 12)
    assert {200, 400} <= {*statuses}
    assert len(statuses) > 50


@pytest.mark.soak
def test_many_more_requests_made_from_the_openapi_page(server: Running) -> None:
    assert len(ask_from_page(server, 400)) > 1000
