"""`sparing serve` as a process: signals, kills, and who may connect."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.serve.conftest import eventually, make_lm

from sparing.data.vocab import ByteVocab
from sparing.runs.folder import create
from sparing.training import checkpoint
from sparing.training.checkpoint import Checkpoint


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder of the tiny model."""
    lm, path = make_lm(printable=False), tmp_path_factory.mktemp("runs") / "tiny"
    path.mkdir()
    folder = create(path, lm.config, ByteVocab(), {})
    weights = dict(lm.model.state_dict())
    cursor = {"step": 1, "tokens": 1}
    checkpoint.save(
        folder.checkpoints, "best", Checkpoint({"model": weights}, cursor), lm.config.identity()
    )
    return path


@contextmanager
def serving(run: Path, *options: str, port: int = 0) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server process, and the port it has printed."""
    command = [sys.executable, "-m", "sparing", "serve", str(run), "--port", str(port), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            found = re.search(r"serving tiny at http://127\.0\.0\.1:(\d+)", line)
            assert found, line + process.stderr.read()
            yield process, int(found[1])
        finally:
            process.kill()


def post(port: int, **fields: Any) -> tuple[int, Any]:
    body = json.dumps({"prompt": "a", **fields})
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def open_stream(port: int, length: int = 3000) -> socket.socket:
    """A connection on which a long answer has begun."""
    body = json.dumps({"prompt": "a", "max_tokens": length, "stream": True}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    connection.sendall(head + f"content-length: {len(body)}\r\n\r\n".encode() + body)
    assert b"200" in connection.recv(100)
    return connection


def figures(port: int) -> bytes:
    """The page for Prometheus."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", "/metrics")
        return connection.getresponse().read()


def connects(port: int) -> bool:
    """Whether something listens."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=60).close()
    except ConnectionRefusedError:
        return False
    return True


def read_all(connection: socket.socket) -> bytes:
    found = b""
    while more := connection.recv(1 << 16):
        found += more
    return found


def test_sigterm_finishes_what_was_begun_and_takes_nothing_new(run: Path) -> None:
    # Longer than an answer takes on a busy machine.
    with serving(run, "--drain", "300") as (process, port):
        with open_stream(port) as connection:
            process.send_signal(signal.SIGTERM)
            found: list[bytes] = []
            thread = threading.Thread(target=lambda: found.append(read_all(connection)))
            thread.start()
            assert process.wait(360) == 0
            thread.join()
        assert b'"finish_reason": "length"' in found[0]
        assert b"data: [DONE]" in found[0]
        assert process.stderr is not None
        assert process.stderr.read() == "stopped\n"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))


def test_an_answer_that_takes_longer_than_the_drain_is_told_so(run: Path) -> None:
    long = 10**7
    whole: list[tuple[int, Any]] = []
    with (
        serving(run, "--drain", "1", "--max-tokens", str(long)) as (process, port),
        open_stream(port, long) as connection,
    ):
        asking = threading.Thread(target=lambda: whole.append(post(port, max_tokens=long)))
        asking.start()
        eventually(lambda: b'sparing_lanes_busy{model="tiny"} 2.0' in figures(port))
        process.send_signal(signal.SIGTERM)
        found = read_all(connection)
        asking.join()
        assert process.wait(60) == 0
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
    assert b"[DONE]" not in found
    assert b'"code": "shutting_down"' in found[-250:]
    ((status, answer),) = whole
    assert (status, answer["error"]["code"]) == (503, "shutting_down")


def test_a_second_ctrl_c_ends_the_server_without_a_traceback(run: Path) -> None:
    with (
        serving(run, "--max-tokens", "10000000") as (process, port),
        open_stream(port, 10**7) as connection,
    ):
        process.send_signal(signal.SIGINT)
        eventually(lambda: not connects(port))
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert b"[DONE]" not in read_all(connection)
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def test_after_a_kill_the_same_port_serves_again_and_no_file_is_left(run: Path) -> None:
    def listing() -> list[tuple[str, int]]:
        return sorted((str(path), path.stat().st_mtime_ns) for path in run.rglob("*"))

    before = listing()
    with serving(run) as (process, port):
        _, expected = post(port, seed=1)
        with open_stream(port):
            process.kill()
            process.wait()
    with serving(run, port=port) as (process, again):
        assert again == port
        assert post(port, seed=1)[1]["choices"] == expected["choices"]
    assert listing() == before


Refused = Callable[..., str]


@pytest.fixture
def refused(run: Path, capfd: pytest.CaptureFixture[str]) -> Refused:
    from sparing.cli.main import main

    def call(*words: str) -> str:
        assert main(["serve", str(run), *words]) == 2
        said = capfd.readouterr()
        assert said.out == ""
        assert said.err.count("\n") == 1
        return said.err

    return call


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_others_may_connect_only_with_a_token(refused: Refused, host: str) -> None:
    assert "needs a token" in refused("--host", host)


def test_a_token_is_not_too_easy(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "8 to 256" in refused("--token", "short")
    monkeypatch.setenv("SPARING_TOKEN", "with spaces in it")
    assert "8 to 256" in refused()


def test_what_cannot_be_served_is_said_in_one_line(refused: Refused, run: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert "in use" in refused("--port", str(port))
    assert "cannot listen" in refused("--host", "192.0.2.1", "--token", "long-enough")
    assert "two runs are named tiny" in refused(str(run), "--port", "0")
    assert "at least 1" in refused("--lanes", "0")
    assert "time limit" in refused("--time", "nan")
    for drain in ("nan", "inf", "-5"):
        assert "--drain" in refused("--drain", drain)


def test_a_missing_extra_is_named(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    from sparing.cli import serve

    monkeypatch.setattr(serve, "find_spec", lambda name: None)
    assert "pip install 'sparing[serve]'" in refused()
