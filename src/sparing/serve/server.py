"""The process: a socket, uvicorn, signals that drain, and clients that take their time."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from sparing.serve.limits import Limits
from sparing.signals import catch_stop_signals

HEADERS_S = 20.0
"""How long the headers of a request may take to arrive."""
STALLED_S = 30.0
"""How long a client may take nothing of an answer that waits for it."""


class Protocol(H11Protocol):
    """HTTP/1.1 for clients that may be slow on purpose. h11 bounds the size of headers itself."""

    headers_s, stalled_s = HEADERS_S, STALLED_S
    _headers_due: asyncio.TimerHandle | None = None
    _taken_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Expect a request soon."""
        super().connection_made(transport)
        self._expect_headers()

    def data_received(self, data: bytes) -> None:
        """Expect the rest of the headers, if they are not complete."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_headers()
        else:
            self._expect_headers()

    def pause_writing(self) -> None:
        """The client does not take what is sent: give up after a while."""
        super().pause_writing()
        if self._taken_due is None:
            self._taken_due = self.loop.call_later(self.stalled_s, self._abort)

    def resume_writing(self) -> None:
        """The client goes on."""
        super().resume_writing()
        self._stop_taken()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is expected any more."""
        super().connection_lost(exc)
        self._stop_headers()
        self._stop_taken()

    def _expect_headers(self) -> None:
        if self._headers_due is None:
            self._headers_due = self.loop.call_later(self.headers_s, self._abort)

    def _stop_headers(self) -> None:
        if self._headers_due is not None:
            self._headers_due.cancel()
            self._headers_due = None

    def _stop_taken(self) -> None:
        if self._taken_due is not None:
            self._taken_due.cancel()
            self._taken_due = None

    def _abort(self) -> None:
        transport: Any = self.transport
        transport.abort()


class Server(uvicorn.Server):
    """Uvicorn, whose first signal drains, and whose second Ctrl-C ends at once."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals inside the block, and do not raise them again."""
        with catch_stop_signals(self.handle_exit):
            yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop to listen; answer what has arrived."""
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def new_server(app: FastAPI, limits: Limits, drain_s: float) -> Server:
    """A server that has not begun; `run` needs a socket."""
    config = uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="warning",
        server_header=False,
        # Uvicorn counts the connection that asks, and refuses it where the limit is reached.
        limit_concurrency=limits.connections + 1,
        timeout_graceful_shutdown=max(1, round(drain_s)),
    )
    return Server(config)
