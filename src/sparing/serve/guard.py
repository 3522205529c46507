"""What every request passes before it reaches an endpoint: host, origin, token, size, time.

Plain ASGI, so that answers stream through it.
"""

import asyncio
import hmac
import json
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from ipaddress import ip_address
from typing import Any

from sparing.serve.errors import ApiError
from sparing.serve.limits import Limits
from sparing.serve.metrics import Metrics

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN_PATHS = ("/", "/health", "/ready", "/openapi.json")
OPEN_FOLDER = "/page/"
"""These need no token: the page asks for it, and machines ask for the rest."""
MODEL = "/v1/models/"
KNOWN_PATHS = ("/v1/completions", "/v1/models", "/score", "/attention", "/metrics", *OPEN_PATHS)
EVENTS = b"text/event-stream"
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
"""These cost and change nothing, and browsers show their answers to the server's own page only."""
GRACE_S = 10.0
"""Time to take the end of an answer, beyond the time limit of the answer itself."""
POLICY = "; ".join(
    [
        "default-src 'none'",
        *(f"{what}-src 'self'" for what in ("script", "style", "connect", "font")),
        "img-src 'self' data:",
        *(f"{what} 'none'" for what in ("base-uri", "form-action", "frame-ancestors")),
    ]
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server at this address."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """Refuses what must not reach the application, and counts every answer."""

    def __init__(self, app: App, limits: Limits, metrics: Metrics, token: str | None) -> None:
        self._app, self._limits, self._metrics, self._token = app, limits, metrics, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = Exchange(receive, send, self._limits.body_bytes)
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        try:
            self._check(scope["method"], scope["path"], headers)
            async with asyncio.timeout(self._limits.time_s + GRACE_S):
                await self._app(scope, exchange.receive, exchange.send)
        except ApiError as problem:
            await exchange.refuse(problem)
        except TimeoutError:
            await exchange.refuse(ApiError(408, "the request took too long", code="timeout"))
        except Exception:
            await exchange.refuse(ApiError(500, "internal server error; see the server's log"))
            # To the log.
            raise
        except asyncio.CancelledError:
            # Uvicorn cancels what takes longer than the drain, and the task ends here anyway.
            await exchange.refuse(
                ApiError(503, "the server is shutting down", code="shutting_down")
            )
        finally:
            self._metrics.note(_counted_as(scope["path"]), *exchange.figures())

    def _check(self, method: str, path: str, headers: Mapping[str, str]) -> None:
        if self._token is None:
            # Otherwise a page elsewhere could reach this server by a name that leads here.
            _check_host(headers.get("host", ""))
            if method not in SAFE_METHODS:
                _check_origin(headers)
        elif not (path in OPEN_PATHS or path.startswith(OPEN_FOLDER)):
            scheme, _, given = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(
                given.strip().encode("latin-1"), self._token.encode()
            ):
                raise ApiError(
                    401,
                    "missing or wrong token; send Authorization: Bearer TOKEN",
                    code="invalid_token",
                )
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self._limits.body_bytes:
            raise too_large(self._limits.body_bytes)


def _counted_as(path: str) -> str:
    """The path in the metrics, which clients must not fill with paths of their own."""
    if path.startswith(MODEL):
        return f"{MODEL}{{id}}"
    return path if path in KNOWN_PATHS else "other"


def _check_host(host: str) -> None:
    name = host[1 : host.find("]")] if host.startswith("[") else host.partition(":")[0]
    if name and not is_loopback(name):
        raise ApiError(421, "this server accepts requests to localhost only", code="wrong_host")


def _check_origin(headers: Mapping[str, str]) -> None:
    """Refuse what a browser sends for a page of another site; other programs name no page."""
    site, host = headers.get("sec-fetch-site"), headers.get("host", "")
    if site is None:
        # From an old browser. The host's port counts, not the server's: there may be a tunnel.
        origin = headers.get("origin")
        own = origin is None or origin.partition("://")[2].lower() == host.lower()
    else:
        own = site in ("same-origin", "none")
    if not own:
        raise ApiError(
            403, "without a token, this server answers no pages of other sites", code="wrong_origin"
        )


def too_large(limit: int) -> ApiError:
    """The error for a body beyond the limit."""
    return ApiError(413, f"the body is longer than {limit} bytes", code="too_large")


class Exchange:
    """One request and its answer: counts what is received, and times what is sent."""

    def __init__(self, receive: Receive, send: Send, body_bytes: int) -> None:
        self._receive, self._send, self._left = receive, send, body_bytes
        self._limit = body_bytes
        self._began, self._first, self._status = time.perf_counter(), 0.0, 499
        self._streaming = False

    async def receive(self) -> Message:
        """Receive a part of the body, unless it is too long."""
        message = await self._receive()
        if message["type"] == "http.request":
            self._left -= len(message.get("body", b""))
            if self._left < 0:
                from starlette.exceptions import HTTPException

                # Any other exception would count as a body that cannot be parsed.
                problem = too_large(self._limit)
                raise HTTPException(problem.status, problem.message)
        return message

    async def send(self, message: Message) -> None:
        """Send a part of the answer, with the headers that all answers have."""
        if message["type"] == "http.response.start":
            self._status, self._first = message["status"], time.perf_counter()
            given = {name for name, _ in message["headers"]}
            more = [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in given]
            message["headers"] = [*message["headers"], *more]
            self._streaming = any(value.startswith(EVENTS) for _, value in message["headers"])
        elif not message.get("more_body", False):
            self._streaming = False
        await self._send(message)

    async def refuse(self, problem: ApiError) -> None:
        """Answer with an error; it is the last event of a stream, and other answers just end."""
        body = json.dumps(problem.body()).encode()
        if self._streaming:
            await self._send({"type": "http.response.body", "body": b"data: %s\n\n" % body})
        if self._first:
            return
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            **problem.headers,
        }
        pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": problem.status, "headers": pairs})
        await self._send({"type": "http.response.body", "body": body})

    def figures(self) -> tuple[int, float, float]:
        """Status, seconds to the first byte, and seconds to the end; 499 for no answer at all."""
        now = time.perf_counter()
        return self._status, (self._first or now) - self._began, now - self._began
