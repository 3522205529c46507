"""Replicas under Ray: one is killed under load, and nobody loses an answer."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.serve.conftest import make_lm
from tests.serve.test_process import post, run

from sparing.cli.main import main
from sparing.errors import UserError
from sparing.serve.limits import Limits

__all__ = ["run"]
LOOPBACK = ("0100007F", "00000000000000000000000001000000")
"""The ends of 127.0.0.1, also within IPv6, and of ::1 in /proc/net."""
pytest.importorskip("ray", reason="ray is not installed")


def replicas() -> list[int]:
    """Process numbers of the replicas on this machine."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if b"ray::ServeReplica:sparing" in (path / "cmdline").read_bytes():
                found.append(int(path.name))
        except OSError:
            continue
    return found


def open_to_others(before: set[tuple[str, str]]) -> list[tuple[str, str]]:
    """Addresses that others reach at which something listens since `before`, as Linux has them."""
    return sorted(each for each in listening() - before if not each[0].endswith(LOOPBACK))


def listening() -> set[tuple[str, str]]:
    """Address and port, in hexadecimal, of every listening socket."""
    lines = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path("/proc/net", name).read_text().splitlines()[1:]
    ]
    found = [line[1].partition(":") for line in lines if line[3] == "0A"]
    return {(address, port) for address, _, port in found}


def ask(port: int, seed: int) -> str | None:
    """A text; None where the answer was an error."""
    try:
        status, found = post(port, seed=seed, max_tokens=40)
    except (OSError, json.JSONDecodeError):
        return None
    return found["choices"][0]["text"] if status == 200 else None


def wait_until_serving(process: "subprocess.Popen[str]") -> None:
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith("serving 2 replicas"):
            # Nobody else reads it, and a full pipe would stop the process.
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return
    pytest.fail("".join(lines))


@pytest.mark.soak
def test_a_killed_replica_is_replaced_under_load_and_no_answer_is_lost(run: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    before_ray = listening()
    words = ["serve", str(run), "--ray", "--replicas", "2", "--port", str(port)]
    with subprocess.Popen(
        [sys.executable, "-m", "sparing", *words],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    ) as process:
        try:
            wait_until_serving(process)
            expected = {seed: ask(port, seed) for seed in range(8)}
            first = replicas()
            assert len(first) == 2
            # Of Ray's own ports others reach one of each replica, which Ray Serve opens itself.
            assert len(open_to_others(before_ray)) == 2
            done, retried, until = [0], [0], time.monotonic() + 25

            def client(seed: int) -> None:
                while time.monotonic() < until:
                    text = ask(port, seed)
                    # What a replica was working on when it was killed is asked for again.
                    retried[0] += text is None
                    assert text in (None, expected[seed])
                    done[0] += text is not None

            threads = [threading.Thread(target=client, args=(seed,)) for seed in expected]
            for thread in threads:
                thread.start()
            time.sleep(5)
            before = done[0]
            os.kill(first[0], signal.SIGKILL)
            for thread in threads:
                thread.join()
            assert done[0] > before > 0
            assert retried[0] <= 8 * 3
            for _ in range(120):
                if len(replicas()) == 2 and first[0] not in replicas():
                    break
                time.sleep(0.5)
            assert len(replicas()) == 2
            assert ask(port, 0) == expected[0]
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
            assert not replicas()
        finally:
            process.kill()


def test_the_replicas_are_as_many_as_was_asked_for() -> None:
    from sparing.serve.ray_cluster import RayOptions

    limits = Limits(lanes=5)
    assert RayOptions(replicas=2).scaling(limits) == {"num_replicas": 2}
    found = RayOptions(replicas=2, most=6).scaling(limits)["autoscaling_config"]
    assert (found["min_replicas"], found["max_replicas"]) == (2, 6)
    assert found["target_ongoing_requests"] == 5
    with pytest.raises(UserError):
        RayOptions(replicas=3, most=2)


def test_options_of_ray_are_refused_without_it(
    run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", str(run), "--replicas", "2"]) == 2
    assert "need --ray" in capfd.readouterr().err


def test_a_replica_asks_to_be_replaced_when_its_engine_does_not_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from sparing.serve.app import create_app
    from sparing.serve.ray_cluster import Replica
    from sparing.serve.service import Service

    with Service({"tiny": make_lm()}, Limits(lanes=1)) as service:
        replica = Replica()
        replica.app = create_app(service)
        replica.app.state.service = service
        replica.check_health()
        (model,) = service.models.values()
        with monkeypatch.context() as patch:
            patch.setattr(model.engine, "_works", False)
            with pytest.raises(RuntimeError, match="an engine does not work"):
                replica.check_health()
