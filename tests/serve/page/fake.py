"""A server for tests of the page: its real files, and a model whose answers are known."""

import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, cast

PAGE = Path(__file__).parents[3] / "src" / "sparing" / "serve" / "page"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
EXPECTED = [
    (b"e", 1.0), (b"t", 2.0), (b" ", 3.0), ("é".encode()[:1], 4.0), (b"\n", 5.0), (b"q", 6.0),
    (b"n", 7.0),
]  # fmt: skip
"""The alternatives at every place, with their bits."""


def bits_of(byte: int) -> float:
    """The surprisal of a byte, wherever it stands."""
    if chr(byte) in "aeiou ":
        return 0.25
    return 2.0 if chr(byte).islower() else 7.75


def entry(bits: float, data: bytes) -> dict[str, Any]:
    return {"bytes": list(data), "logprob": -bits * math.log(2)}


@dataclass
class Script:
    """What the model writes, and how the server behaves."""

    written: bytes = b"wrote the first program."
    delay_s: float = 0.0
    token: str | None = None
    busy: int = 0
    """Requests that are answered 429 before the next is served."""
    fails: bool = False
    """Whether a stream breaks off in the middle."""
    attention: bool = True
    models: tuple[str, ...] = ("tiny",)
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Paths and bodies of all requests so far."""
    cut: int = 0
    """Streams that their reader left early."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def script(self) -> Script:
        return cast("FakeServer", self.server).script

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self.guarded({})
            return
        name = "index.html" if self.path == "/" else self.path.removeprefix("/page/")
        path = PAGE / name
        if path.parent == PAGE and path.is_file():
            kind = f"{TYPES[path.suffix]}; charset=utf-8"
            self.send(200, path.read_bytes(), kind, {"Content-Security-Policy": POLICY})
        else:
            self.refuse(404, f"there is no {self.path}")

    def do_POST(self) -> None:
        self.guarded(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def guarded(self, body: dict[str, Any]) -> None:
        self.script.asked.append((self.path, body))
        if self.script.token and self.headers["Authorization"] != f"Bearer {self.script.token}":
            self.refuse(401, "this server needs a token")
        elif self.script.busy and body:
            self.script.busy -= 1
            self.refuse(429, "the queue is full", {"Retry-After": "1"})
        else:
            {
                "/v1/models": self.models,
                "/v1/completions": self.complete,
                "/score": self.score,
                "/attention": self.attend,
            }[self.path](body)

    def models(self, body: dict[str, Any]) -> None:
        facts = {"parameters": 7_800_000, "vocabulary": "bytes", "bits_per_byte": 1.0385}
        each = {"object": "model", "created": 0, "owned_by": "sparing", **facts}
        data = [{"id": i, "attention": self.script.attention, **each} for i in self.script.models]
        self.answer({"object": "list", "data": data})

    def score(self, body: dict[str, Any]) -> None:
        top = [entry(bits, data) for data, bits in EXPECTED[: body.get("top", 0)]]
        scores = []
        for text in body["texts"]:
            data = text.encode()
            bits = [bits_of(byte) for byte in data]
            scores.append(
                {
                    "bytes": len(data),
                    "tokens": len(data),
                    "loss_nats": sum(bits) * math.log(2),
                    "bits_per_byte": sum(bits) / len(bits),
                    "token_logprobs": [-each * math.log(2) for each in bits],
                    "token_bytes": [[byte] for byte in data],
                    "top_bytes": [top for _ in data],
                }
            )
        self.answer({"model": body["model"], "scores": scores})

    def attend(self, body: dict[str, Any]) -> None:
        """Two layers of two heads; the last head looks at the first byte of the text only."""
        length = len(body["text"].encode())
        near = {"span": 8.0, "weights": [0.0] * (length - 1) + [1.0]}
        far = {"span": 5000.0, "weights": [1.0] + [0.0] * (length - 1)}
        layers = [{"layer": 0, "heads": [near, near]}, {"layer": 1, "heads": [near, far]}]
        self.answer({"model": body["model"], "length": length, "layers": layers})

    def complete(self, body: dict[str, Any]) -> None:
        if not body.get("stream"):
            self.answer({"choices": [self.choice(self.script.written[:1])]})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            for event in self.events(body):
                self.wfile.write(event)
                time.sleep(self.script.delay_s)
        except OSError:
            self.script.cut += 1
        self.close_connection = True

    def events(self, body: dict[str, Any]) -> Iterator[bytes]:
        for at, byte in enumerate(self.script.written[: body["max_tokens"]]):
            if self.script.fails and at == 3:
                return
            yield b"data: %s\n\n" % json.dumps({"choices": [self.choice(bytes([byte]))]}).encode()
        yield b"data: [DONE]\n\n"

    def choice(self, data: bytes) -> dict[str, Any]:
        logprobs = {
            "tokens": [chr(byte) for byte in data],
            "token_logprobs": [-bits_of(byte) * math.log(2) for byte in data],
            "bytes": [[byte] for byte in data],
            "top_bytes": [[entry(bits, each) for each, bits in EXPECTED] for _ in data],
        }
        return {"index": 0, "text": data.decode(errors="replace"), "logprobs": logprobs}

    def refuse(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        self.answer({"error": {"message": message, "type": "refused"}}, status, headers)

    def answer(
        self, body: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None
    ) -> None:
        self.send(status, json.dumps(body).encode(), "application/json", headers or {})

    def send(self, status: int, body: bytes, kind: str, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Cache-Control": "no-store", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class FakeServer(ThreadingHTTPServer):
    """Serves on loopback from a thread of its own until it is closed."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script = Script()
        self.thread = Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05})
        self.thread.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"

    def close(self) -> None:
        self.shutdown()
        self.thread.join()
        self.server_close()
