"""A tiny model, engines for it, and servers of this process on a free port."""

import http.client
import json
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import openai
import pytest
import torch

from sparing import device
from sparing.config import with_settings
from sparing.data.vocab import ByteVocab
from sparing.generate.sampling import SamplingConfig
from sparing.lm import LM
from sparing.models.stack.config import StackConfig
from sparing.models.stack.model import Stack
from sparing.runs.config import RunConfig
from sparing.serve.app import create_app
from sparing.serve.engine import Engine
from sparing.serve.limits import Limits
from sparing.serve.requests import Event, GenerateRequest, Piece, Request, is_last
from sparing.serve.server import new_server
from sparing.serve.service import Service
from sparing.training.config import TrainConfig

SETTINGS = (
    "pattern=gaf",
    "dim=16",
    "windowed.heads=2",
    "windowed.head_dim=8",
    "windowed.span_limit=64",
    "windowed.span_starts=3.5,40",
    "windowed.ramp=4",
    "feedforward.dim=32",
)
LIMITS = Limits(lanes=16, queue=16, chunk=16, prompt_tokens=4096, max_tokens=512, time_s=60)


def make_lm(*, printable: bool = True) -> LM:
    """A model of bytes with lively weights, the same each time; it writes whole characters."""
    config = with_settings(StackConfig(vocab_size=256), list(SETTINGS))
    torch.manual_seed(11)
    model = Stack(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "span" not in name:
                parameter.add_(0.1 * torch.randn_like(parameter))
    if printable:
        bias_V = torch.full((256,), -6.0)
        bias_V[32:127] = 0
        model.head.bias = torch.nn.Parameter(bias_V)
    run = RunConfig(recipe="tiny", family="stack", model=config, train=TrainConfig(steps=1))
    return LM(model, ByteVocab(), run, device.pick("cpu", "float32"))


@pytest.fixture(scope="session")
def lm() -> LM:
    return make_lm()


def eventually(check: Callable[[], bool]) -> None:
    """Wait for what another thread will do."""
    for _ in range(600):
        if check():
            return
        time.sleep(0.05)
    pytest.fail("it did not happen")


@dataclass
class Inbox:
    """Where the events of some requests arrive."""

    events: list[list[Event]] = field(default_factory=list)
    order: list[int] = field(default_factory=list)
    """The request of each event, in the order of their arrival."""
    _queue: "queue.SimpleQueue[tuple[int, Event]]" = field(default_factory=queue.SimpleQueue)
    open: int = 0

    def receivers(self, count: int) -> list[Callable[[Event], None]]:
        first = len(self.events)
        self.events += [[] for _ in range(count)]
        self.open += count
        return [
            lambda event, to=to: self._queue.put((to, event)) for to in range(first, first + count)
        ]

    def wait(self, until: Callable[["Inbox"], bool] | None = None) -> "Inbox":
        while self.open and not (until and until(self)):
            to, event = self._queue.get(timeout=60)
            self.events[to].append(event)
            self.order.append(to)
            self.open -= is_last(event)
        return self

    def text(self, index: int = 0) -> str:
        return "".join(event.text for event in self.events[index] if isinstance(event, Piece))


def ask(engine: Engine, *requests: Request) -> Inbox:
    """Submit requests and wait for all their events."""
    inbox = Inbox()
    engine.submit(requests, inbox.receivers(len(requests)))
    return inbox.wait()


def write(text: str | bytes, length: int = 24, *, seed: int = 0, **more: Any) -> GenerateRequest:
    data = text.encode() if isinstance(text, str) else text
    ids = np.frombuffer(data, np.uint8).astype(np.int64)
    sampling = SamplingConfig(seed=seed, temperature=more.pop("temperature", 1.0))
    return GenerateRequest(ids=ids, text=data, length=length, sampling=sampling, **more)


@pytest.fixture
def engine(lm: LM) -> Iterator[Engine]:
    engine = Engine(lm, LIMITS)
    yield engine
    engine.close()


@dataclass
class Running:
    """A server of this process."""

    port: int
    service: Service
    token: str | None = None

    @property
    def engine(self) -> Engine:
        return next(iter(self.service.models.values())).engine

    def request(
        self, path: str, body: Any = None, method: str | None = None, **headers: str
    ) -> tuple[int, Any, dict[str, str]]:
        """Return the status, the JSON (or bytes) and the headers of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        if self.token:
            headers.setdefault("Authorization", f"Bearer {self.token}")
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        if data is not None:
            headers.setdefault("Content-Type", "application/json")
        connection.request(method or ("GET" if body is None else "POST"), path, data, headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        given = {name.lower(): value for name, value in answer.getheaders()}
        if given.get("content-type") == "application/json":
            return answer.status, json.loads(content), given
        return answer.status, content, given

    def complete(self, prompt: Any = "", **fields: Any) -> Any:
        """The JSON of a completion that must succeed."""
        status, found, _ = self.request("/v1/completions", {"prompt": prompt, **fields})
        assert status == 200, found
        return found

    def connect(self, data: bytes = b"") -> socket.socket:
        """A connection over which some bytes were sent."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        connection.sendall(data)
        return connection


@pytest.fixture(scope="session")
def start_server() -> Iterator[Callable[..., Running]]:
    with ExitStack() as stack:

        def start(
            models: dict[str, LM], limits: Limits = LIMITS, token: str | None = None
        ) -> Running:
            service = stack.enter_context(Service(models, limits))
            server = new_server(create_app(service, token), limits, 5)
            listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
            thread.start()
            stack.callback(thread.join)
            stack.callback(lambda: setattr(server, "should_exit", True))
            return Running(listening.getsockname()[1], service, token)

        yield start


@pytest.fixture(scope="session")
def server(lm: LM, start_server: Callable[..., Running]) -> Running:
    return start_server({"tiny": lm, "twin": make_lm()})


def texts(answer: Any) -> Sequence[str]:
    """The texts of all choices."""
    return [choice["text"] for choice in answer["choices"]]


def client(server: Running) -> openai.OpenAI:
    """OpenAI's client of a server."""
    address = f"http://127.0.0.1:{server.port}/v1"
    return openai.OpenAI(base_url=address, api_key=server.token or "none", max_retries=0)


def idle(server: Running) -> bool:
    """Whether no lane is in use, and no text waits for one."""
    return all(
        model.engine.counts.lanes_busy == model.engine.counts.queued == 0
        for model in server.service.models.values()
    )


@pytest.fixture(autouse=True)
def no_lane_leaks(request: pytest.FixtureRequest) -> Any:
    yield
    if "server" in request.fixturenames:
        eventually(lambda: idle(request.getfixturevalue("server")))
