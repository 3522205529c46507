"""The HTTP interface of a service: endpoints, and how errors look."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, StreamingResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from sparing import __version__, units
from sparing.serve import schema
from sparing.serve.completions import (
    CompletionResponse,
    check_count,
    check_logprobs,
    encode_prompt,
    generate_requests,
    top_bytes,
)
from sparing.serve.errors import ApiError, error_body
from sparing.serve.guard import Guard
from sparing.serve.metrics import Metrics
from sparing.serve.requests import AttentionRequest, AttentionResult, ScoreRequest, ScoreResult
from sparing.serve.service import Events, Service

T = TypeVar("T")
PAGE = Path(__file__).parent / "page"
"""The page at `/`, as it is sent."""
EVENT = {"type": "object", "properties": {"data": {"type": "string"}}}
"""A server-sent event: its data is a chunk of the answer, an error, or `[DONE]`."""
NO_OBJECT = "the body must be a JSON object, sent with Content-Type: application/json"
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": schema.ErrorBody, "description": description}
    for status, description in {
        400: "The request is invalid; nothing was done.",
        401: "The token is missing or wrong.",
        403: "The server has no token, and a page of another site sent the request.",
        404: "There is no such model.",
        408: "The request did not arrive in time.",
        413: "The body is too long.",
        421: "The server has no token, and `Host` names another machine.",
        429: "The queue is full; try again after `Retry-After` seconds.",
        500: "Internal server error.",
        503: "The server is shutting down, or the model does not work.",
        504: "The answer was not finished in time.",
    }.items()
}


def create_app(service: Service, token: str | None = None) -> FastAPI:
    """The application; without a token it answers on loopback addresses only."""
    app = FastAPI(
        title="sparing",
        version=__version__,
        description="Language models that spend attention sparingly.",
        docs_url=None,
        redoc_url=None,
    )
    metrics = Metrics(service)
    # The type of a middleware is that of its constructor, which Starlette declares narrowly.
    guard: Any = Guard
    app.add_middleware(guard, limits=service.limits, metrics=metrics, token=token)
    _add_errors(app)
    _add_probes(app, service, metrics)
    _add_models(app, service)
    _add_completions(app, service)
    _add_scores(app, service)
    if (PAGE / "index.html").is_file():
        app.mount("/page", StaticFiles(directory=PAGE), name="page")
        app.add_api_route("/", _page, include_in_schema=False)
    # Last: another route would make FastAPI write the page anew.
    _correct_schema(app.openapi())
    return app


async def _page() -> Response:
    return FileResponse(PAGE / "index.html")


def _correct_schema(page: dict[str, Any]) -> None:
    """Remove the answer that FastAPI gives to invalid requests: here it is 400."""
    for operations in page["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        page["components"]["schemas"].pop(name, None)


def _add_probes(app: FastAPI, service: Service, metrics: Metrics) -> None:
    stopped: dict[int | str, dict[str, Any]] = {
        503: {"model": schema.State, "description": "It does not work, or accepts no requests."}
    }

    @app.get("/health", responses={200: {"model": schema.State}, **stopped})
    async def health() -> Response:
        """Whether the server works; if not, restart it."""
        status = ("failed", 503) if service.failed else ("ok", 200)
        return JSONResponse({"status": status[0]}, status[1])

    @app.get("/ready", responses={200: {"model": schema.State}, **stopped})
    async def ready() -> Response:
        """Whether the server accepts requests; if not, send them elsewhere."""
        if service.open:
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "failed" if service.failed else "stopping"}, 503)

    @app.get("/metrics", response_class=Response, responses={401: PROBLEMS[401]})
    async def prometheus() -> Response:
        """Metrics for Prometheus."""
        return Response(metrics.page(), media_type="text/plain; version=0.0.4")


def _add_models(app: FastAPI, service: Service) -> None:
    denied: dict[int | str, dict[str, Any]] = {each: PROBLEMS[each] for each in (401, 421)}

    @app.get("/v1/models/", include_in_schema=False)
    @app.get("/v1/models", responses={200: {"model": schema.ModelList}, **denied})
    async def models() -> Response:
        """The models that are served."""
        cards = [model.card for model in service.models.values()]
        return JSONResponse({"object": "list", "data": cards})

    # An id may contain slashes.
    @app.get(
        "/v1/models/{id:path}",
        responses={200: {"model": schema.ModelCard}, 404: PROBLEMS[404], **denied},
    )
    async def model(id: str) -> Response:
        """One of them."""
        return JSONResponse(service.model(id).card)


def _add_completions(app: FastAPI, service: Service) -> None:
    done: dict[int | str, dict[str, Any]] = {
        200: {
            "model": schema.CompletionAnswer,
            "content": {"text/event-stream": {"schema": EVENT}},
        }
    }

    @app.post("/v1/completions", responses={**done, **PROBLEMS})
    async def completions(asked: schema.CompletionRequest, request: Request) -> Response:
        """Continue a prompt; with `stream`, as server-sent events."""
        model = service.model(asked.model)
        requests = generate_requests(model, asked, service.limits)
        response = CompletionResponse(model, asked, requests)
        events = Events(model.engine, requests)
        if not asked.stream:
            async with events:
                return JSONResponse(await _unless_gone(request, response.whole(events)))
        chunks = response.chunks(events)
        # What goes wrong before the first chunk is still answered with a status of its own.
        first = await _unless_gone(request, anext(chunks))
        return StreamingResponse(_with_first(first, chunks), media_type="text/event-stream")


async def _with_first(first: str, rest: AsyncGenerator[str]) -> AsyncIterator[str]:
    async with aclosing(rest):
        yield first
        async for chunk in rest:
            yield chunk


def _add_scores(app: FastAPI, service: Service) -> None:
    @app.post("/score", responses={200: {"model": schema.Scores}, **PROBLEMS})
    async def score(asked: schema.ScoreTexts, request: Request) -> Response:
        """Log-probability and bits per byte of texts, each from its own beginning."""
        model = service.model(asked.model)
        check_count(len(asked.texts), service.limits, "texts")
        every = [encode_prompt(model, text, service.limits, "texts") for text in asked.texts]
        if any(len(ids) == 0 for ids in every):
            raise ApiError(400, "a text has no tokens; leave it out", param="texts")
        check_logprobs(sum(map(len, every)) * (1 + asked.top), service.limits, "top")
        requests = [ScoreRequest(ids=ids, top=asked.top) for ids in every]
        async with Events(model.engine, requests) as events:
            found = await _unless_gone(request, _collect(events, ScoreResult, len(requests)))
        sizes = [len(text.encode()) for text in asked.texts]
        scores = [_score(each, size) for each, size in zip(found, sizes, strict=True)]
        return JSONResponse({"model": model.id, "scores": scores})

    @app.post("/attention", responses={200: {"model": schema.Attention}, **PROBLEMS})
    async def attention(asked: schema.AttentionText, request: Request) -> Response:
        """What the heads attend to from the last token of a text."""
        model = service.model(asked.model)
        ids = encode_prompt(model, asked.text, service.limits, "text")
        if not (model.card["attention"] and len(ids)):
            what = "the text is empty" if model.card["attention"] else "not for this model"
            raise ApiError(400, f"no attention weights: {what}")
        async with Events(model.engine, [AttentionRequest(ids=ids)]) as events:
            (found,) = await _unless_gone(request, _collect(events, AttentionResult, 1))
        return JSONResponse({"model": model.id, "length": len(ids), "layers": _layers(found)})


async def _collect(events: Events, kind: type[T], count: int) -> Sequence[T]:
    found = dict[int, T]()
    async for index, event in events:
        assert isinstance(event, kind)
        found[index] = event
    return [found[index] for index in range(count)]


async def _unless_gone(request: Request, work: Awaitable[T]) -> T:
    """Wait for an answer as long as the client does."""
    working, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnect(request))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ApiError(408, "the client has gone", code="gone")
        return await working
    finally:
        working.cancel()
        gone.cancel()


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _score(found: ScoreResult, size: int) -> dict[str, Any]:
    loss_nats = -sum(score.logprob for score in found.scores)
    return {
        "bytes": size,
        "tokens": len(found.scores),
        "loss_nats": loss_nats,
        "bits_per_byte": units.bits_per_byte(loss_nats, size),
        "token_logprobs": [score.logprob for score in found.scores],
        "token_bytes": [list(score.token) for score in found.scores],
        "top_bytes": [top_bytes(score) for score in found.scores],
    }


def _layers(found: AttentionResult) -> list[dict[str, Any]]:
    layers = []
    for layer, weights_HS in sorted(found.weights.items()):
        windows = found.windows.get(layer, [None] * len(weights_HS))
        heads = [
            {"span": window, "weights": _trimmed(weights_S.tolist())}
            for window, weights_S in zip(windows, weights_HS, strict=True)
        ]
        layers.append({"layer": layer, "heads": heads})
    return layers


def _trimmed(weights: list[float]) -> list[float]:
    """The weights from the first position on that gets any."""
    first = next((at for at, weight in enumerate(weights) if weight), len(weights) - 1)
    return [round(weight, 7) for weight in weights[first:]]


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(ApiError)
    async def refused(request: Request, problem: ApiError) -> Response:
        return JSONResponse(problem.body(), problem.status, problem.headers)

    @app.exception_handler(HTTPException)
    async def http(request: Request, problem: HTTPException) -> Response:
        return JSONResponse(
            error_body(problem.status_code, str(problem.detail)),
            problem.status_code,
            problem.headers,
        )

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, problem: RequestValidationError) -> Response:
        first = problem.errors()[0]
        if first["type"] == "json_invalid":
            reason = first["ctx"]["error"]
            return JSONResponse(error_body(400, f"the body is not JSON: {reason}"), 400)
        place = ".".join(str(part) for part in first["loc"][1:])
        if first["type"] == "extra_forbidden":
            message = f"{place} is not supported; leave it out"
        elif first["type"] == "value_error":
            message = f"{place} {first['ctx']['error']}"
        else:
            message = f"{place}: {first['msg']}" if place else NO_OBJECT
        param = str(first["loc"][1]) if len(first["loc"]) > 1 else None
        return JSONResponse(error_body(400, message, param), 400)
